"""A client's desk at one shard of a table: orders in shared memory, instead of messages.

The client writes ids and gradients into blocks of its arena, and has room there for the rows it asks for. A clerk at
the server takes orders as they come (`csrc/near/clerk.hpp`), and frees the blocks of each part that it has applied.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps import _native
from heterps.errors import HeterPSError
from heterps.ps.errors import ServerError, ServerTimeout
from heterps.ps.shared import Arena, Bytes, Place, View, keep
from heterps.ps.wire import Reply

PATIENCE_MS = 500
"""Between two looks at whether the server is still there."""
ROOM_S = 60.0
"""How long to wait for memory or orders to become free (assumed: far above a step)."""
ROOM_TURN_S = 0.001


class Desk:
    """Gives orders to the clerk of one shard. For several threads."""

    def __init__(self, arena: Arena, server: View, address: str, memory: Bytes, clerk: Place) -> None:
        """`memory` was a block of zeros in the arena, `clerk` is where the clerk's bell lies in the server's."""
        self._arena, self._server, self.address = arena, server, address
        self._core = _native.Desk(memory, server.read(clerk))

    def ask(self, ids: NDArray[np.int64], dim: int, *, after: int, repeats: int) -> Asked:
        """Orders the rows of ids as they are when a step is applied."""
        place, room = self.room(ids.nbytes)
        room.view(np.int64)[:] = ids
        rows, memory = self.room(4 * dim * len(ids))
        number = self._posted(lambda ms: self._core.ask(after, len(ids), place[0], rows[0], repeats, ms))
        return Asked(self, number, place, rows, memory.view(np.float32).reshape(-1, dim))

    def part(
        self, ids: NDArray[np.int64] | Asked, grads: NDArray[np.float32], *, step: int, part: int, lr: float | None
    ) -> Order:
        """Orders gradients to be applied with the other parts of a step; they lie in `room`.

        Ids that were asked for lie there already; each order for rows serves one part.
        """
        place = (0, 0)  # of no ids
        if isinstance(ids, Asked):
            place = ids.place
            ids.spent = True
        elif len(ids):
            place, room = self.room(ids.nbytes)
            room.view(np.int64)[:] = ids
        at = self._arena.place_of(grads) if grads.size else None
        where, count = (0, 0) if at is None else (at[0], len(grads))
        number = self._posted(lambda ms: self._core.part(step, part, count, place[0], where, lr, ms))
        return Order(self, number)

    def room(self, nbytes: int) -> tuple[Place, Bytes]:
        """A block of the arena; waits for one if there is none."""
        end_s = time.monotonic() + ROOM_S
        while (taken := self._arena.take(nbytes)) is None:
            if time.monotonic() > end_s:
                raise ServerTimeout(f"no room for {nbytes:,} bytes in {ROOM_S:g} s: take smaller batches")
            time.sleep(ROOM_TURN_S)  # the server frees blocks without telling
        return taken

    def give_back(self, place: Place) -> None:
        """Frees a block that the clerk does not use any more."""
        self._arena.give_back(place)

    def state(self, number: int, most_ms: int) -> bool | None:
        """Whether an order is done; False: it failed, None: it is open."""
        return self._core.wait(number, most_ms)

    def failure(self, number: int) -> HeterPSError | None:
        """Why an order can come to nothing any more; None if it still may."""
        if self.state(number, 0) is False:
            return ServerError(f"{self.address}: {self._core.why(number)}")
        gone = not Path(f"/proc/{self._server.process}").exists()
        return ServerError(f"{self.address}: the server is gone") if gone else None

    def _posted(self, post: Callable[[int], int | None]) -> int:
        end_s = time.monotonic() + ROOM_S
        while (number := post(PATIENCE_MS)) is None:
            if time.monotonic() > end_s:
                raise ServerTimeout(f"{self.address}: takes no more orders")
        return number


class Order:
    """An order; what those need of a `Future` who wait for replies."""

    def __init__(self, desk: Desk, number: int) -> None:
        self._desk, self._number = desk, number
        self._reply = Reply(-1, "ok")
        self._over = False
        self._error: HeterPSError | None = None

    def done(self) -> bool:
        """True if it is done, or has failed."""
        if not self._over and (state := self._desk.state(self._number, 0)) is not None:
            self._end(None if state else self._desk.failure(self._number))
        return self._over

    def exception(self, timeout: float | None = None) -> HeterPSError | None:
        """Waits; gives the error if it failed. `TimeoutError` if it is not done in time."""
        end_s = None if timeout is None else time.monotonic() + timeout
        while not self._over:
            left_ms = PATIENCE_MS if end_s is None else max(0, int(1e3 * (end_s - time.monotonic())))
            state = self._desk.state(self._number, min(PATIENCE_MS, left_ms))
            if state:
                self._end(None)
            elif (error := self._desk.failure(self._number)) is not None:
                self._end(error)
            elif end_s is not None and time.monotonic() >= end_s:
                raise TimeoutError
        return self._error

    def result(self, timeout: float | None = None) -> Reply:
        """Waits; gives the reply."""
        if (error := self.exception(timeout)) is not None:
            raise error
        return self._reply

    def _end(self, error: HeterPSError | None) -> None:
        self._over, self._error = True, error


class Asked(Order):
    """An order for rows. Their memory goes back with it, or when nothing looks into what was kept of it any more."""

    def __init__(self, desk: Desk, number: int, place: Place, rows: Place, memory: NDArray[np.float32]) -> None:
        super().__init__(desk, number)
        self.desk, self.place, self._rows = desk, place, rows
        """Where the ids lie."""
        self.spent = False
        """Whether a part has them, with which they go back."""
        self._memory: NDArray[np.float32] | None = memory

    def result(self, timeout: float | None = None) -> Reply:
        """The rows."""
        super().result(timeout)
        assert self._memory is not None, "rows are there once"
        memory, self._memory = self._memory, None
        return Reply(-1, "ok", None, [memory], _Room(self.desk, self._rows))

    def __del__(self) -> None:
        if self.done():  # else the clerk may still need them: they stay taken
            for place in ([] if self._memory is None else [self._rows]) + ([] if self.spent else [self.place]):
                self.desk.give_back(place)


class _Room:
    """The memory of rows that have come."""

    def __init__(self, desk: Desk, place: Place) -> None:
        self._desk, self._place = desk, place
        self.due = True

    def keep(self, array: NDArray[Any]) -> NDArray[Any]:
        """The array; the memory goes back when nothing looks into it any more."""
        return keep(array, self)

    def give_back(self) -> None:
        """The rows are read."""
        if self.due:
            self.due = False
            self._desk.give_back(self._place)

    def __del__(self) -> None:
        self.give_back()
