"""What replicas send each other: one msgpack header and raw buffers, each a frame. Nothing is pickled or trusted.

    message  [header, buffer...]  header = [VERSION, attempt, kind, step, part, [[name, dtype, shape, frames]...]]

`kind`, `step` and `part` say what it is: the activations of a micro-batch, its gradients, the gradients of a table's
rows, … `frames` is the number of frames a tensor fills, in order; a tensor that is None has the dtype "". Whatever
breaks a rule here is a `WireError`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import torch
from torch import Tensor

from heterps.ps.errors import WireError
from heterps.ps.wire import MAX_FRAMES, MAX_HEADER_BYTES, PIECE_BYTES, Frame

VERSION = 1
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


def encode(message: Message, attempt: int, *, narrow: bool = False) -> list[Frame]:
    """Frames of a message; with `narrow`, float32 travels as bf16."""
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
        flat = sent.reshape(-1).view(torch.uint8).numpy() if sent.numel() else b""
        pieces = [flat[at : at + PIECE_BYTES] for at in range(0, len(flat), PIECE_BYTES)]
        described.append([name, code if sent is held else f"{code}/bf16", list(held.shape), len(pieces)])
        frames += pieces
    frames[0] = msgpack.packb([VERSION, attempt, message.kind, message.step, message.part, described])
    return frames


def decode(frames: Sequence[Frame]) -> tuple[int, Message]:
    """The attempt and the message, of frames from anywhere."""
    _require(len(frames) >= 1, "at least a header")
    _require(len(frames[0]) <= MAX_HEADER_BYTES, f"a header of at most {MAX_HEADER_BYTES} bytes")
    try:
        header = msgpack.unpackb(frames[0], strict_map_key=True)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"malformed message: header: no msgpack ({error})") from None
    _require(isinstance(header, list) and len(header) == 6 and header[0] == VERSION, f"header: version {VERSION}")
    _, attempt, kind, step, part, described = header
    _require(_is_count(attempt) and _is_count(step), "header: attempt and step, whole numbers")
    _require(all(isinstance(text, str) and len(text) <= MAX_NAME for text in (kind, part)), "header: short strings")
    _require(isinstance(described, list) and len(described) <= MAX_FRAMES, "header: a list of tensors")
    tensors: dict[str, Tensor | None] = {}
    at = 1
    for entry in described:
        _require(isinstance(entry, list) and len(entry) == 4, "tensor: name, dtype, shape, frames")
        name, code, shape, count = entry
        _require(isinstance(name, str) and name not in tensors, "tensor: a name of its own")
        _require(_is_count(count) and at + count <= len(frames), "fewer buffers than described")
        tensors[name] = _tensor(code, shape, frames[at : at + count])
        at += count
    _require(at == len(frames), "more buffers than described")
    return attempt, Message(kind, step, part, tensors)


def _tensor(code: Any, shape: Any, pieces: Sequence[Frame]) -> Tensor | None:
    if code == "":
        _require(not pieces, "tensor: none, but with buffers")
        return None
    _require(isinstance(code, str), "tensor: its dtype")
    wanted, _, wire = code.partition("/")
    _require(wanted in DTYPES and (wire or wanted) in DTYPES, f"tensor: dtype one of {', '.join(DTYPES)}")
    _require(isinstance(shape, list) and len(shape) <= MAX_AXES and all(map(_is_count, shape)), "tensor: its shape")
    dtype, size = DTYPES[wire or wanted], sum(map(len, pieces))
    _require(prod(shape) * dtype.itemsize == size, f"tensor: shape {shape} of {code} is not {size} bytes")
    tensor = torch.empty(shape, dtype=dtype)  # memory of its own: autograd may write to it
    flat, at = tensor.reshape(-1).view(torch.uint8).numpy(), 0
    for piece in pieces:
        flat[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
        at += len(piece)
    return tensor.to(DTYPES[wanted])


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise WireError(f"malformed message: {rule}")
