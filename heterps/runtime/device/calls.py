"""CUDA's copies and events, started without handing the interpreter over.

Every operation of PyTorch lets other threads run while it starts, and then waits for the interpreter again. The stages
of a pipeline share it, and a step has a dozen copies and events: waiting took longer than they do. These calls return
after some microseconds, whatever the device is doing, and keep the interpreter.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch
from torch import Tensor

_ANY_DIRECTION = 4
_NOT_READY = 600
_SIGNATURES: dict[str, list[Any]] = {
    "cudaMemcpyAsync": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p],
    "cudaEventRecord": [ctypes.c_void_p, ctypes.c_void_p],
    "cudaStreamWaitEvent": [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint],
    "cudaEventQuery": [ctypes.c_void_p],
}


@cache
def _functions() -> dict[str, Any]:
    """Of the CUDA runtime that PyTorch has loaded; none if it cannot be found."""
    try:
        library = ctypes.PyDLL(f"libcudart.so.{str(torch.version.cuda).partition('.')[0]}")
    except OSError:
        return {}
    found = {name: getattr(library, name) for name in (*_SIGNATURES, "cudaEventSynchronize")}
    for name, arguments in _SIGNATURES.items():
        found[name].argtypes = arguments
    return found


def available() -> bool:
    """True if these calls can be made."""
    return bool(_functions())


def address_of_wait() -> int:
    """Where the function is that waits for an event, for native code to call; 0 if there is none."""
    function = _functions().get("cudaEventSynchronize")
    return ctypes.cast(function, ctypes.c_void_p).value or 0 if function is not None else 0


def _call(name: str, *arguments: Any) -> int:
    code: int = _functions()[name](*arguments)
    if code not in (0, _NOT_READY):
        raise RuntimeError(f"{name}: CUDA error {code}")
    return code


def copy(target: Tensor, source: Tensor, stream: Any, *, size: int | None = None) -> None:
    """Copies the first `size` bytes of a tensor, or all, to the beginning of another one.

    Both are contiguous and have room for it, on the host in pinned memory, and live until the copy is done: PyTorch
    does not know of it.
    """
    count = source.nbytes if size is None else size
    _call("cudaMemcpyAsync", target.data_ptr(), source.data_ptr(), count, _ANY_DIRECTION, stream.cuda_stream)


def made_event(stream: Any, *, timed: bool = False) -> Any:
    """An event that is there already, not only when it is first recorded."""
    event = torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def record(event: Any, stream: Any) -> None:
    """The event happens when the stream has done what it was given so far."""
    _call("cudaEventRecord", event.cuda_event, stream.cuda_stream)


def wait(stream: Any, event: Any) -> None:
    """The stream goes on when the event, as it was last recorded, has happened."""
    _call("cudaStreamWaitEvent", stream.cuda_stream, event.cuda_event, 0)


def happened(event: Any) -> bool:
    """True if the event, as it was last recorded, has happened."""
    return _call("cudaEventQuery", event.cuda_event) == 0
