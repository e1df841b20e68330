"""Memory that processes of one machine share: large arrays cross in it, and only their places travel as messages.

Each process has one `Arena`, a nameless file in memory: it goes with the process, however that ends. A peer maps it by
the process's number and descriptor, if it is of the same user on the same machine; 16 random bytes at its beginning
tell whether it is the right one, and a seal keeps it at its size. The owner writes a block and sends its place; the one
receiver reads it and gives it back by a mark in the block, without a message. An arena that is full has no block to
give, and what should have gone into it travels as a message; only orders at desks (`heterps.ps.desk`), which lie as a
whole in the arena of who gives them, wait for room. Of a receiver that died, the owner takes all blocks back.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from heterps.ps.errors import WireError

ARENA_BYTES = 16 << 30
"""Room for what is under way to all peers; pages that were never used cost nothing (assumed: a few steps of large
batches, as what is ordered at a desk has no other way)."""
LEAST_BYTES = 16 << 10
"""Smaller arrays travel as messages: a block would cost more than it saves (assumed)."""
KEPT_BYTES = 64 << 20
"""Of a peer's blocks that a process keeps beyond reading them (assumed: a few steps of rows; others need room, too)."""
ALIGN = 64
TOKEN_BYTES = 16
NAME = "heterps"
_FREE, _TAKEN = 0, 1
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
"""Nobody changes the size: reading behind the end of a file that was cut short would kill the reader."""

Bytes: TypeAlias = NDArray[np.uint8]
Place: TypeAlias = tuple[int, int]
"""Offset and length of a block's bytes."""


@dataclass(frozen=True, slots=True)
class Offer:
    """What a peer needs to map an arena."""

    process: int
    descriptor: int
    token: str

    @classmethod
    def of(cls, given: Any) -> Offer | None:
        """An offer as it came over the wire, `[process, descriptor, token]`; None if it is none."""
        if not isinstance(given, list) or len(given) != 3:
            return None
        process, descriptor, token = given
        numbers = all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in (process, descriptor))
        return cls(process, descriptor, token) if numbers and isinstance(token, str) else None

    def to_list(self) -> list[Any]:
        """For the wire."""
        return [self.process, self.descriptor, self.token]


class Arena:
    """The blocks that this process sends. Safe for several threads."""

    def __init__(self, nbytes: int = ARENA_BYTES) -> None:
        self._nbytes = nbytes
        self._descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, nbytes)
        fcntl.fcntl(self._descriptor, fcntl.F_ADD_SEALS, _SEALS)
        self._bytes = _map(self._descriptor, nbytes)
        self._marks: memoryview = self._bytes.data
        self._address = self._bytes.ctypes.data
        token = secrets.token_bytes(TOKEN_BYTES)
        self._bytes[:TOKEN_BYTES] = np.frombuffer(token, np.uint8)
        self._lock = threading.Lock()
        self._taken: list[tuple[int, int, Any]] = []
        """Start, end and receiver of the blocks that were given out, in the order of starts."""
        self.offer = Offer(os.getpid(), self._descriptor, token.hex())

    def take(self, nbytes: int, receiver: Any = None) -> tuple[Place, Bytes] | None:
        """A block of so many bytes to write to, and its place; None if there is no room for it now.

        `receiver` names who gets it, for `take_back`.
        """
        size = ALIGN + -(-nbytes // ALIGN) * ALIGN
        with self._lock:
            marks = self._marks
            self._taken = [block for block in self._taken if marks[block[0]] != _FREE]
            at, start = len(self._taken), ALIGN
            for number, (first, end, _) in enumerate(self._taken):  # the lowest gap: its pages are likely to be warm
                if first - start >= size:
                    at = number
                    break
                start = end
            if start + size > self._nbytes:
                return None
            marks[start] = _TAKEN
            self._taken.insert(at, (start, start + size, receiver))
        first = start + ALIGN
        return (first, nbytes), self._bytes[first : first + nbytes]

    def put(self, array: NDArray[Any]) -> Place | None:
        """Writes a contiguous array into a block; None if it is small, or there is no room."""
        if array.nbytes < LEAST_BYTES or (taken := self.take(array.nbytes)) is None:
            return None
        place, block = taken
        block[:] = array.reshape(-1).view(np.uint8)
        return place

    def place_of(self, array: NDArray[Any]) -> Place | None:
        """Where a contiguous array lies in this arena, from the first byte of a block on; None if it lies elsewhere."""
        start = int(array.__array_interface__["data"][0]) - self._address
        return (start, array.nbytes) if 0 < start < self._nbytes else None

    def give_back(self, place: Place) -> None:
        """Frees a block that was not sent after all."""
        self._marks[place[0] - ALIGN] = _FREE

    def take_back(self, receiver: Any) -> None:
        """Frees all blocks of a receiver that is no more."""
        with self._lock:
            for start, _, whose in self._taken:
                if whose == receiver:
                    self._marks[start] = _FREE

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks that are not given back yet."""
        with self._lock:
            return sum(end - start for start, end, _ in self._taken if self._marks[start] != _FREE)

    def close(self) -> None:
        """Lets go of the memory, when the last array in it is gone; peers keep what they have mapped."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class View:
    """A peer's arena, as this process sees it."""

    def __init__(self, mapped: Bytes, process: int) -> None:
        self._bytes = mapped
        self.process = process
        """Whose it is."""
        self.kept: dict[int, int] = {}
        """Bytes of the arrays in it that are kept (`Lent.keep`), by who keeps them."""

    @classmethod
    def open(cls, offer: Offer) -> View | None:
        """Maps the arena; None if the peer is on another machine, another user's, or gone."""
        path = f"/proc/{offer.process}/fd/{offer.descriptor}"
        try:
            if not str(Path(path).readlink()).startswith(f"/memfd:{NAME}"):  # opening others may do something
                return None
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            nbytes = os.fstat(descriptor).st_size
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            mapped = _map(descriptor, nbytes) if nbytes > ALIGN and sealed else None
        except (OSError, ValueError):
            return None
        finally:
            os.close(descriptor)
        if mapped is None or mapped[:TOKEN_BYTES].tobytes().hex() != offer.token:
            return None
        return cls(mapped, offer.process)

    @property
    def memory(self) -> Bytes:
        """All of it."""
        return self._bytes

    def read(self, place: Place) -> Bytes:
        """The bytes of a block; valid until it is given back."""
        start, nbytes = self._checked(place)
        return self._bytes[start : start + nbytes]

    def give_back(self, place: Place) -> None:
        """Tells the owner that the block is read."""
        start, _ = self._checked(place)
        self._bytes[start - ALIGN] = _FREE

    def _checked(self, place: Place) -> Place:
        start, nbytes = place
        if start < 2 * ALIGN or start % ALIGN or nbytes < 0 or start + nbytes > len(self._bytes):
            raise WireError(f"malformed message: no block at {start} of {nbytes} bytes")
        return place


class Loan(Protocol):
    """Memory that arrays lie in, which goes back when they are read."""

    due: bool

    def keep(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """The array, whose memory goes back when nothing looks into it any more; None if it has to be copied."""
        ...

    def give_back(self) -> None:
        """Gives it back if it is due; once."""
        ...


class Lent:
    """Blocks of a peer that were read: once `due`, they go back by `give_back`, at the latest with this object."""

    __slots__ = ("_places", "_view", "due")

    def __init__(self, view: View, places: list[Place]) -> None:
        self._view, self._places = view, places
        self.due = False

    def keep(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """An array that lies in the blocks: they go back when nothing looks into it any more.

        None if so much of that peer's is kept here already that others would lack room: it has to be copied.
        """
        kept = self._view.kept
        return keep(array, _Counted(self, kept, array.nbytes)) if _fits(kept, array.nbytes) else None

    def give_back(self) -> None:
        """Gives the blocks back if they are due; once."""
        if self.due:
            self.due = False
            for place in self._places:
                self._view.give_back(place)

    def __del__(self) -> None:
        self.give_back()


class _Counted:
    """Blocks of which something is kept, while it is."""

    def __init__(self, lent: Lent, kept: dict[int, int], nbytes: int) -> None:
        self._lent, self._kept = lent, kept
        kept[id(self)] = nbytes

    def __del__(self) -> None:
        del self._kept[id(self)]


def _fits(kept: dict[int, int], nbytes: int) -> bool:
    return sum(list(kept.values())) + nbytes <= KEPT_BYTES


def keep(array: NDArray[Any], owner: Any) -> NDArray[Any]:
    """The array, which keeps an object alive for as long as anything looks into it."""
    return np.asarray(_Kept(array, owner))


class _Kept:
    """What such arrays keep alive. An array would not do: NumPy has those that look into it look past it."""

    def __init__(self, array: NDArray[Any], owner: Any) -> None:
        self.__array_interface__ = array.__array_interface__
        self._owner = owner


def _map(descriptor: int, nbytes: int) -> Bytes:
    """A writable array over a file; the mapping ends with the last array that looks into it."""
    return np.frombuffer(mmap.mmap(descriptor, nbytes), np.uint8)
