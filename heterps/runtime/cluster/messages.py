"""What replicas send each other: one msgpack header and raw buffers, each a frame. Nothing is pickled or trusted.

    message  [header, buffer...]
    header   [VERSION, attempt, [stage, replica] of the sender, kind, step, part, [[name, dtype, shape, where]...]]

`kind`, `step` and `part` say what it is: the activations of a micro-batch, its gradients, a part of a sum, … `where` a
tensor is: the number of frames it fills, in order, or [offset, bytes] in the sender's shared memory. A tensor that is
None has the dtype "". Whatever breaks a rule here is a `WireError`.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import Tensor

from heterps.ps.errors import WireError
from heterps.ps.shared import Arena, Place, View
from heterps.ps.wire import MAX_FRAMES, MAX_HEADER_BYTES, PIECE_BYTES, Frame
from heterps.runtime.cluster.layout import Seat

VERSION = 2
MAX_AXES = 8
MAX_NAME = 512
DTYPES = {
    "f4": torch.float32, "f8": torch.float64, "f2": torch.float16, "bf16": torch.bfloat16, "i8": torch.int64,
    "i4": torch.int32, "i2": torch.int16, "i1": torch.int8, "u1": torch.uint8, "b1": torch.bool,
}  # fmt: skip
CODES = {dtype: code for code, dtype in DTYPES.items()}

Key = tuple[str, int, str]
"""Kind, step and part of a message: what a receiver waits for."""


@dataclass(frozen=True, slots=True)
class Message:
    """Named tensors from one replica to another."""

    kind: str
    step: int
    part: str
    tensors: Mapping[str, Tensor | None] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What a receiver waits for."""
        return self.kind, self.step, self.part

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values() if tensor is not None)


def encode(
    message: Message, sender: Seat, attempt: int, *, narrow: bool = False, arena: Arena | None = None
) -> list[Frame]:
    """Frames of a message; with `narrow`, float32 travels as bf16; large tensors go into the arena, if there is one."""
    frames: list[Frame] = [b""]
    described = []
    for name, tensor in message.tensors.items():
        if tensor is None:
            described.append([name, "", [], 0])
            continue
        held = tensor.detach().to("cpu").contiguous()
        code, sent = CODES[held.dtype], held
        if narrow and held.dtype == torch.float32:
            sent = held.to(torch.bfloat16)
        flat = sent.reshape(-1).view(torch.uint8).numpy() if sent.numel() else np.empty(0, np.uint8)
        where: Any = arena.put(flat) if arena is not None else None
        if where is None:
            pieces = [flat[at : at + PIECE_BYTES] for at in range(0, len(flat), PIECE_BYTES)]
            frames += pieces
            where = len(pieces)
        described.append([name, code if sent is held else f"{code}/bf16", list(held.shape), where])
    own = [sender.stage, sender.replica]
    frames[0] = msgpack.packb([VERSION, attempt, own, message.kind, message.step, message.part, described])
    return frames


def decode(frames: Sequence[Frame], views: Mapping[Seat, View] | None = None) -> tuple[int, Message]:
    """The attempt and the message, of frames from anywhere; `views` are the memories that peers share with us."""
    _require(len(frames) >= 1, "at least a header")
    _require(len(frames[0]) <= MAX_HEADER_BYTES, f"a header of at most {MAX_HEADER_BYTES} bytes")
    try:
        header = msgpack.unpackb(frames[0], strict_map_key=True)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"malformed message: header: no msgpack ({error})") from None
    _require(isinstance(header, list) and len(header) == 7 and header[0] == VERSION, f"header: version {VERSION}")
    _, attempt, sender, kind, step, part, described = header
    _require(_is_count(attempt) and _is_count(step) and _is_pair(sender), "header: attempt, sender, step")
    _require(all(isinstance(text, str) and len(text) <= MAX_NAME for text in (kind, part)), "header: short strings")
    _require(isinstance(described, list) and len(described) <= MAX_FRAMES, "header: a list of tensors")
    view = (views or {}).get(Seat(*sender))
    tensors: dict[str, Tensor | None] = {}
    at = 1
    for entry in described:
        _require(isinstance(entry, list) and len(entry) == 4, "tensor: name, dtype, shape, where")
        name, code, shape, where = entry
        _require(isinstance(name, str) and name not in tensors, "tensor: a name of its own")
        if _is_pair(where):
            _require(view is not None, "tensor: in memory that is not shared with us")
            assert view is not None
            tensors[name] = _shared(code, shape, view, (where[0], where[1]))
            continue
        _require(_is_count(where) and at + where <= len(frames), "fewer buffers than described")
        tensors[name] = _tensor(code, shape, frames[at : at + where])
        at += where
    _require(at == len(frames), "more buffers than described")
    return attempt, Message(kind, step, part, tensors)


def _tensor(code: Any, shape: Any, pieces: Sequence[Frame]) -> Tensor | None:
    if code == "":
        _require(not pieces, "tensor: none, but with buffers")
        return None
    wire, wanted = _checked(code, shape, sum(map(len, pieces)))
    tensor = torch.empty(shape, dtype=wire)  # memory of its own: autograd may write to it
    flat, at = tensor.reshape(-1).view(torch.uint8).numpy(), 0
    for piece in pieces:
        flat[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return tensor.to(wanted)


def _shared(code: Any, shape: Any, view: View, place: Place) -> Tensor:
    """A tensor where its sender wrote it: ours until the last one that looks into it is gone."""
    wire, wanted = _checked(code, shape, place[1])
    block = view.read(place)
    weakref.finalize(block, view.give_back, place)
    return torch.from_numpy(block).view(wire).reshape(shape).to(wanted)


def _checked(code: Any, shape: Any, nbytes: int) -> tuple[torch.dtype, torch.dtype]:
    """The types in which a tensor travels and is wanted."""
    _require(isinstance(code, str), "tensor: its dtype")
    wanted, _, wire = code.partition("/")
    _require(wanted in DTYPES and (wire or wanted) in DTYPES, f"tensor: dtype one of {', '.join(DTYPES)}")
    _require(isinstance(shape, list) and len(shape) <= MAX_AXES and all(map(_is_count, shape)), "tensor: its shape")
    dtype = DTYPES[wire or wanted]
    _require(prod(shape) * dtype.itemsize == nbytes, f"tensor: shape {shape} of {code} is not {nbytes} bytes")
    return dtype, DTYPES[wanted]


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(_is_count, value))


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise WireError(f"malformed message: {rule}")
