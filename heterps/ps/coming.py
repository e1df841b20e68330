"""Replies with rows: waited for, read where they lie, or spread to the ids that were asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heterps.ps.desk import Asked, Desk
from heterps.ps.errors import ServerTimeout
from heterps.ps.outstanding import Answer
from heterps.ps.rows import unpack
from heterps.ps.shards import Batch
from heterps.ps.wire import Reply


class Coming:
    """Rows that were asked for ahead."""

    def __init__(self, batch: Batch, futures: Sequence[Answer], shape: tuple[int, ...]) -> None:
        self.batch, self._futures, self._shape = batch, futures, shape
        self.spent = False
        """Whether a push has had it."""

    def asked(self, desk: Desk) -> Asked | None:
        """What was asked for at a desk; None if there are no ids for it."""
        return next((one for one in self._futures if isinstance(one, Asked) and one.desk is desk), None)

    def rows(self, timeout_s: float | None = None) -> NDArray[np.float32]:
        """The rows, once. `ServerTimeout` if they do not come in time; `ServerError` if they were abandoned."""
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        for future in self._futures:
            try:
                future.exception(None if end_s is None else max(0.0, end_s - time.monotonic()))
            except TimeoutError:
                raise ServerTimeout(f"rows that were asked for ahead did not come within {timeout_s:g} s") from None
        replies = all_of(self._futures)
        rows = as_sent(self.batch, replies)
        if rows is None:
            rows = np.empty(self._shape, np.float32)
            spread_rows(self.batch, replies, rows)
        return rows.reshape(self._shape)


def as_sent(batch: Batch, replies: list[Reply]) -> NDArray[np.float32] | None:
    """The rows where the server wrote them, if they lie in shared memory and may stay there; else None."""
    if batch.index is not None or len(replies) != 1 or len(replies[0].arrays) != 1 or replies[0].lent is None:
        return None
    return replies[0].lent.keep(replies[0].arrays[0])


def spread_rows(batch: Batch, replies: list[Reply], out: NDArray[np.float32]) -> None:
    """Writes the row of each id that was asked for, and gives the replies' memory back."""
    try:
        rows = [unpack(array) for reply in replies for array in reply.arrays]
        batch.spread(rows, out.reshape(-1, out.shape[-1]))
    finally:
        for reply in replies:
            reply.give_back()


def all_of(futures: Sequence[Answer]) -> list[Reply]:
    """All replies; waits for every one before the first error is raised, so that nothing stays under way."""
    for future in futures:
        future.exception()
    return [future.result() for future in futures]
