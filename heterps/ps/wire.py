"""Messages: one msgpack header and raw buffers, each a frame. Nothing is pickled, nothing is trusted.

A request message holds operations of one client, numbered in a row; a reply message holds replies to some of them:

    request  [header, buffer...]  header = [VERSION, client, low, [[seq, verb, table, args, buffers]...]]
    reply    [header, buffer...]  header = [VERSION, [[seq, status, value, buffers]...]]

`client` is the client's 16 random bytes, `low` its least number still without a reply. `buffers` describes the arrays
of an operation as [dtype, shape, bytes]: small ones lie in the header; for the others `bytes` is the number of frames
that hold them, in order. Numbers are little-endian. Whatever breaks a rule here is a `WireError`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import prod
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from heterps.ps.errors import WireError

VERSION = 1
MAX_FRAME_BYTES = 64 << 20
"""Largest frame a server takes (assumed: far above a batch, far below memory). Clients split what is larger."""
MAX_HEADER_BYTES = 4 << 20
MAX_FRAMES = 1024
MAX_OPERATIONS = 256
"""Operations in one message."""
MAX_NAME = 256
INLINE_BYTES = 4096
"""Arrays up to this size lie in the header: a frame costs more than copying so little (assumed)."""
PIECE_BYTES = 256 << 10
"""Frames of an array where they are encrypted: one side decrypts a piece while the other encrypts the next. Of 32 KiB
to 512 KiB, this was the fastest (measured: a pull of 2.4 MB in 3.4 ms, 4.5 ms in one piece)."""
DTYPES: dict[str, np.dtype[Any]] = {
    "i8": np.dtype("<i8"),
    "f4": np.dtype("<f4"),
    "f2": np.dtype("<f2"),
    "bf16": np.dtype("<u2"),
}
"""What travels; bf16 as its bits in uint16."""
CODES = {dtype: code for code, dtype in DTYPES.items()}
CLIENT_BYTES = 16

Array = NDArray[Any]
Frame = Any
"""bytes, memoryview or a contiguous array."""

assert sys.byteorder == "little", "buffers travel as they lie in memory"


@dataclass(frozen=True, slots=True)
class Operation:
    """One verb on one table, with plain arguments and arrays."""

    seq: int
    verb: str
    table: str
    args: dict[str, Any]
    arrays: list[Array] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends."""

    client: bytes
    low: int
    operations: list[Operation]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one operation.

    `status` is ok, invalid or error (`value` says why), busy (in work) or gap (to be sent again from `value` on).
    """

    seq: int
    status: str
    value: Any = None
    arrays: list[Array] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)


def encode_request(request: Request, *, piece_bytes: int = MAX_FRAME_BYTES) -> list[Frame]:
    """Frames of a request, with arrays in pieces of at most `piece_bytes`."""
    frames: list[Frame] = [b""]
    operations = [
        [o.seq, o.verb, o.table, o.args, _describe(o.arrays, frames, piece_bytes)] for o in request.operations
    ]
    frames[0] = msgpack.packb([VERSION, request.client, request.low, operations])
    return frames


def encode_replies(replies: Iterable[Reply], *, piece_bytes: int = MAX_FRAME_BYTES) -> list[Frame]:
    """Frames of some replies to one client, with arrays in pieces of at most `piece_bytes`."""
    frames: list[Frame] = [b""]
    entries = [[r.seq, r.status, r.value, _describe(r.arrays, frames, piece_bytes)] for r in replies]
    frames[0] = msgpack.packb([VERSION, entries])
    return frames


def decode_request(frames: Sequence[Frame]) -> Request:
    """The inverse of `encode_request`, for frames from anywhere."""
    _, client, low, operations = _header(frames, 4)
    if not isinstance(client, bytes) or len(client) != CLIENT_BYTES:
        raise WireError(f"malformed message: client: {CLIENT_BYTES} bytes")
    _require(_is_count(low), "low: a whole number")
    _require(isinstance(operations, list) and len(operations) <= MAX_OPERATIONS, f"at most {MAX_OPERATIONS} operations")
    buffers = iter(frames[1:])
    decoded = []
    for entry in operations:
        seq, verb, table, args, arrays = _entry(entry, 5)
        _require(isinstance(verb, str) and len(verb) <= MAX_NAME, "verb: a short string")
        _require(isinstance(table, str) and len(table) <= MAX_NAME, "table: a short string")
        _require(isinstance(args, dict) and all(isinstance(key, str) for key in args), "arguments: a map of strings")
        decoded.append(Operation(seq, verb, table, args, _arrays(arrays, buffers)))
    _require(all(b.seq == a.seq + 1 for a, b in pairwise(decoded)), "numbers in a row")
    _require(next(buffers, None) is None, "more buffers than described")
    return Request(client, low, decoded)


def decode_replies(frames: Sequence[Frame]) -> list[Reply]:
    """The inverse of `encode_replies`, for frames from anywhere."""
    _, replies = _header(frames, 2)
    _require(isinstance(replies, list), "replies: a list")
    buffers = iter(frames[1:])
    decoded = []
    for entry in replies:
        _require(isinstance(entry, list) and len(entry) == 4, "reply: four entries")
        seq, status, value, arrays = entry
        _require(isinstance(seq, int) and isinstance(status, str), "reply: number and status")
        decoded.append(Reply(seq, status, value, _arrays(arrays, buffers)))
    _require(next(buffers, None) is None, "more buffers than described")
    return decoded


def _describe(arrays: Iterable[Array], frames: list[Frame], piece_bytes: int) -> list[list[Any]]:
    described: list[list[Any]] = []
    for array in arrays:
        if array.nbytes <= INLINE_BYTES:
            described.append([CODES[array.dtype], list(array.shape), array.tobytes()])
            continue
        array = np.ascontiguousarray(array)
        flat = array.reshape(-1).view(np.uint8)
        pieces = [flat[at : at + piece_bytes] for at in range(0, len(flat), piece_bytes)]
        described.append([CODES[array.dtype], list(array.shape), len(pieces)])
        frames += pieces
    return described


def _header(frames: Sequence[Frame], length: int) -> list[Any]:
    _require(1 <= len(frames) <= MAX_FRAMES, f"1 to {MAX_FRAMES} frames, not {len(frames)}")
    _require(len(frames[0]) <= MAX_HEADER_BYTES, f"a header of at most {MAX_HEADER_BYTES} bytes")
    try:
        header = msgpack.unpackb(frames[0], strict_map_key=True)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"malformed message: header: no msgpack ({error})") from None
    _require(isinstance(header, list) and len(header) >= 1, "header: a list")
    _require(_is_count(header[0]) and header[0] == VERSION, f"header: version {VERSION}")
    _require(len(header) == length, f"header: {length} entries")
    return list(header)


def _entry(entry: Any, length: int) -> list[Any]:
    _require(isinstance(entry, list) and len(entry) == length, f"operation: {length} entries")
    _require(_is_count(entry[0]), "operation: its number, a whole number")
    return list(entry)


def _arrays(described: Any, buffers: Any) -> list[Array]:
    _require(isinstance(described, list) and len(described) <= 8, "buffers: a list of at most 8")
    return [_array(entry, buffers) for entry in described]


def _array(entry: Any, buffers: Any) -> Array:
    _require(isinstance(entry, list) and len(entry) == 3, "buffer: dtype, shape, bytes")
    code, shape, data = entry
    _require(isinstance(code, str) and code in DTYPES, f"buffer: dtype one of {', '.join(DTYPES)}")
    _require(isinstance(shape, list) and len(shape) <= 2 and all(map(_is_count, shape)), "buffer: shape of 1 or 2 axes")
    if not isinstance(data, bytes):
        _require(_is_count(data) and 1 <= data <= MAX_FRAMES, "buffer: bytes, or the number of its frames")
        pieces = list(islice(buffers, data))
        _require(len(pieces) == data, "fewer buffers than described")
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    dtype = DTYPES[code]
    size = len(data)
    _require(prod(shape) * dtype.itemsize == size, f"buffer: shape {shape} of {code} is not {size} bytes")
    array: Array = np.frombuffer(data, dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()  # small frames lie anywhere in a receive buffer


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise WireError(f"malformed message: {rule}")
