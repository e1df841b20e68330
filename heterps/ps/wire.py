"""Messages: one msgpack header and raw buffers, each a frame. Nothing is pickled, nothing is trusted.

A request message holds operations of one client, numbered in a row; a reply message holds replies to some of them:

    request  [header, buffer...]  header = [VERSION, client, low, [[seq, verb, table, args, buffers]...], sharing?]
    reply    [header, buffer...]  header = [VERSION, [[seq, status, value, buffers]...], offer?]

`client` is the client's 16 random bytes, `low` its least number still without a reply. `buffers` describes the arrays
of an operation as [dtype, shape, bytes]: small ones lie in the header; for the others `bytes` is the number of frames
that hold them, in order, or [offset, length] of a block in the sender's shared memory. Numbers are little-endian.
A request without operations only says that the client has all replies below `low`: its last word.
Whatever breaks a rule here is a `WireError`. Its answer has the number -1; the numbers of the operations in that
message, if they can be read, are the array of the answer.

Shared memory: `sharing` = [process, descriptor, token, mapped] offers the client's arena and names the token of the
server's arena that the client has mapped, or nothing. A server that can map the client's answers with the `offer` of
its own, [process, descriptor, token], until the client has mapped it. From then on both send blocks. Every message says
all this anew, so that either side may be another process tomorrow.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from math import prod
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from heterps.ps.errors import WireError
from heterps.ps.shared import LEAST_BYTES, Arena, Lent, Loan, Offer, Place, View

VERSION = 1
MAX_FRAME_BYTES = 64 << 20
"""Largest frame a server takes (assumed: far above a batch, far below memory). Clients split what is larger."""
MAX_HEADER_BYTES = 4 << 20
MAX_FRAMES = 1024
MAX_ARRAYS = 512
"""Arrays of one operation or reply."""
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
class Sharing:
    """A client's arena, and the token of the server's arena that it has mapped; empty: none."""

    offer: Offer
    mapped: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """What a client sends."""

    client: bytes
    low: int
    operations: list[Operation]
    sharing: Sharing | None = None


ViewOf = Callable[[Sharing], View | None]
"""The arena of a client, mapped; None if it cannot be."""


class Unmapped(WireError):
    """A block of an arena that this process has not mapped."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one operation.

    `status` is ok, invalid or error (`value` says why), busy (in work), held (a part that waits for others), gap (to be
    sent again from `value` on) or unmapped (to be sent again without shared memory).
    """

    seq: int
    status: str
    value: Any = None
    arrays: list[Array] = field(default_factory=list)
    lent: Loan | None = None
    """The memory that the arrays lie in."""

    def give_back(self) -> None:
        """The arrays are read, and not needed any more."""
        if self.lent is not None:
            self.lent.give_back()

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)


def encode_request(request: Request, *, piece_bytes: int = MAX_FRAME_BYTES, arena: Arena | None = None) -> list[Frame]:
    """Frames of a request, with arrays in pieces of at most `piece_bytes`; those in `arena` stay there."""
    frames: list[Frame] = [b""]
    operations = [
        [o.seq, o.verb, o.table, o.args, _describe(o.arrays, frames, piece_bytes, arena)] for o in request.operations
    ]
    header = [VERSION, request.client, request.low, operations]
    if request.sharing is not None:
        header.append([*request.sharing.offer.to_list(), request.sharing.mapped])
    frames[0] = msgpack.packb(header)
    return frames


def encode_replies(
    replies: Iterable[Reply],
    *,
    piece_bytes: int = MAX_FRAME_BYTES,
    arena: Arena | None = None,
    offer: Offer | None = None,
) -> list[Frame]:
    """Frames of some replies to one client, with arrays in pieces of at most `piece_bytes` or left in `arena`."""
    frames: list[Frame] = [b""]
    header = [VERSION, [[r.seq, r.status, r.value, _describe(r.arrays, frames, piece_bytes, arena)] for r in replies]]
    if offer is not None:
        header.append(offer.to_list())
    frames[0] = msgpack.packb(header)
    return frames


def decode_request(frames: Sequence[Frame], view_of: ViewOf | None = None) -> Request:
    """The inverse of `encode_request`, for frames from anywhere. `view_of` finds the arena of who has sent it."""
    _, client, low, operations, *more = _header(frames, 4)
    if not isinstance(client, bytes) or len(client) != CLIENT_BYTES:
        raise WireError(f"malformed message: client: {CLIENT_BYTES} bytes")
    _require(_is_count(low), "low: a whole number")
    _require(isinstance(operations, list) and len(operations) <= MAX_OPERATIONS, f"at most {MAX_OPERATIONS} operations")
    sharing = _sharing(more[0]) if more else None
    source = _Source(frames[1:], view_of(sharing) if view_of is not None and sharing is not None else None)
    decoded = []
    for entry in operations:
        seq, verb, table, args, arrays = _entry(entry, 5)
        _require(isinstance(verb, str) and len(verb) <= MAX_NAME, "verb: a short string")
        _require(isinstance(table, str) and len(table) <= MAX_NAME, "table: a short string")
        _require(isinstance(args, dict) and all(isinstance(key, str) for key in args), "arguments: a map of strings")
        decoded.append(Operation(seq, verb, table, args, source.arrays(arrays)))
    _require(all(b.seq == a.seq + 1 for a, b in pairwise(decoded)), "numbers in a row")
    source.end()
    return Request(client, low, decoded, sharing)


def numbers_of(frames: Sequence[Frame]) -> Array | None:
    """The numbers of the operations in a request that breaks a rule, as far as they can be read; None: not at all."""
    try:
        operations = _header(frames[:1], 4)[3]
    except WireError:
        return None
    entries = operations[:MAX_OPERATIONS] if isinstance(operations, list) else []
    numbers = [entry[0] for entry in entries if isinstance(entry, list) and entry and _is_count(entry[0])]
    return np.array(numbers, np.int64) if numbers else None


def decode_replies(frames: Sequence[Frame], view: View | None = None) -> tuple[list[Reply], Offer | None]:
    """The inverse of `encode_replies`, for frames from anywhere: the replies, and the server's arena if it offers it.

    What lies in blocks is not due to be given back before the replies are found to be wanted.
    """
    _, replies, *more = _header(frames, 2)
    _require(isinstance(replies, list), "replies: a list")
    offer = Offer.of(more[0]) if more else None
    _require(not more or offer is not None, "offer: process, descriptor and token")
    source = _Source(frames[1:], view)
    decoded = []
    for entry in replies:
        _require(isinstance(entry, list) and len(entry) == 4, "reply: four entries")
        seq, status, value, described = entry
        _require(isinstance(seq, int) and isinstance(status, str), "reply: number and status")
        arrays, places = source.arrays(described), source.taken()
        lent = Lent(view, places) if view is not None and places else None
        decoded.append(Reply(seq, status, value, arrays, lent))
    source.end()
    return decoded, offer


def _describe(arrays: Iterable[Array], frames: list[Frame], piece_bytes: int, arena: Arena | None) -> list[list[Any]]:
    described: list[list[Any]] = []
    for array in arrays:
        code, shape = CODES[array.dtype], list(array.shape)
        if array.nbytes <= INLINE_BYTES:
            described.append([code, shape, array.tobytes()])
            continue
        array = np.ascontiguousarray(array)
        place = arena.place_of(array) if arena is not None and array.nbytes >= LEAST_BYTES else None
        if place is not None:
            described.append([code, shape, list(place)])
            continue
        flat = array.reshape(-1).view(np.uint8)
        pieces = [flat[at : at + piece_bytes] for at in range(0, len(flat), piece_bytes)]
        described.append([code, shape, len(pieces)])
        frames += pieces
    return described


def _sharing(given: Any) -> Sharing:
    _require(isinstance(given, list) and len(given) == 4 and isinstance(given[3], str), "sharing: an offer and a token")
    offer = Offer.of(given[:3])
    if offer is None:
        raise WireError("malformed message: sharing: process, descriptor and token")
    return Sharing(offer, given[3])


def _header(frames: Sequence[Frame], length: int) -> list[Any]:
    _require(1 <= len(frames) <= MAX_FRAMES, f"1 to {MAX_FRAMES} frames, not {len(frames)}")
    _require(len(frames[0]) <= MAX_HEADER_BYTES, f"a header of at most {MAX_HEADER_BYTES} bytes")
    try:
        header = msgpack.unpackb(frames[0], strict_map_key=True)
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        raise WireError(f"malformed message: header: no msgpack ({error})") from None
    _require(isinstance(header, list) and len(header) >= 1, "header: a list")
    _require(_is_count(header[0]) and header[0] == VERSION, f"header: version {VERSION}")
    _require(len(header) in (length, length + 1), f"header: {length} entries, or one more")
    return list(header)


def _entry(entry: Any, length: int) -> list[Any]:
    _require(isinstance(entry, list) and len(entry) == length, f"operation: {length} entries")
    _require(_is_count(entry[0]), "operation: its number, a whole number")
    return list(entry)


class _Source:
    """The bytes of a message's arrays: its frames, in order, and the blocks of its sender."""

    def __init__(self, frames: Sequence[Frame], view: View | None) -> None:
        self._frames, self._view = iter(frames), view
        self._places: list[Place] = []

    def arrays(self, described: Any) -> list[Array]:
        """The arrays of one operation or reply."""
        _require(isinstance(described, list) and len(described) <= MAX_ARRAYS, f"buffers: at most {MAX_ARRAYS}")
        return [self._array(entry) for entry in described]

    def taken(self) -> list[Place]:
        """The blocks used since the last call."""
        places, self._places = self._places, []
        return places

    def end(self) -> None:
        """Everything must be used."""
        _require(next(self._frames, None) is None, "more buffers than described")

    def _array(self, entry: Any) -> Array:
        _require(isinstance(entry, list) and len(entry) == 3, "buffer: dtype, shape, bytes")
        code, shape, given = entry
        _require(isinstance(code, str) and code in DTYPES, f"buffer: dtype one of {', '.join(DTYPES)}")
        _require(isinstance(shape, list) and len(shape) <= 2 and all(map(_is_count, shape)), "buffer: 1 or 2 axes")
        data = (
            given if isinstance(given, bytes) else self._block(given) if isinstance(given, list) else self._join(given)
        )
        dtype, size = DTYPES[code], len(data)
        _require(prod(shape) * dtype.itemsize == size, f"buffer: shape {shape} of {code} is not {size} bytes")
        array: Array = np.frombuffer(data, dtype).reshape(shape)
        return array if array.flags.aligned else array.copy()  # small frames lie anywhere in a receive buffer

    def _join(self, count: Any) -> Frame:
        _require(_is_count(count) and 1 <= count <= MAX_FRAMES, "buffer: bytes, a block, or the number of its frames")
        pieces = list(islice(self._frames, count))
        _require(len(pieces) == count, "fewer buffers than described")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _block(self, given: list[Any]) -> Frame:
        _require(len(given) == 2 and all(map(_is_count, given)), "block: offset and length")
        if self._view is None:
            raise Unmapped("malformed message: a block of memory that is not shared")
        place = (given[0], given[1])
        block = self._view.read(place)
        self._places.append(place)
        return block


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62


def _require(condition: bool, rule: str) -> None:
    if not condition:
        raise WireError(f"malformed message: {rule}")
