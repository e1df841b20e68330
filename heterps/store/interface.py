"""The interface that local and remote tables share."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from heterps.store.config import TableConfig

Ids = Any
"""int64, any shape: a NumPy array or a torch CPU tensor."""
Rows = Any
"""float32 of the same kind as the ids: their shape + (dim,)."""
Pooling = Literal["sum", "mean"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stats:
    """What a table holds and has done. Counters start at zero when the table is made or loaded."""

    rows: int
    bytes: int
    """Memory of rows, state, index and life cycle."""
    candidates: int
    """Ids seen, but not yet admitted."""
    hits: int
    """Ids pulled whose row was there (occurrences, not distinct ids)."""
    creations: int
    """Rows created."""
    expired: int
    """Rows dropped as unseen, or by `shrink`."""
    steps: int
    """Pushes applied."""


class Table(Protocol):
    """A sparse table: rows of `dim` floats under any int64 id."""

    @property
    def config(self) -> TableConfig:
        """What the table was made with."""
        ...

    def pull(self, ids: Ids, *, out: Rows | None = None, create: bool = True) -> Rows:
        """Rows of `ids` (any shape; the result has one more axis), written into `out` if given.

        An id without a row gets one; with `create=False` it only reads as its first value.
        """
        ...

    def prepare(self, ids: Ids) -> None:
        """Does ahead what a pull of these ids needs; only for speed."""
        ...

    def push(self, ids: Ids, grads: Rows) -> None:
        """Applies gradients: duplicates are summed, then each row is updated once. Ids without a row are created."""
        ...

    def put(self, ids: Ids, weights: Rows) -> None:
        """Sets the rows of distinct ids (one axis), and makes those that are missing; their state stays as it is."""
        ...

    def bag(self, ids: Ids, offsets: Ids, *, mode: Pooling = "sum", create: bool = True) -> Rows:
        """A pooled row for each bag: bag b has ids[offsets[b]:offsets[b+1]], the last one the rest; zeros if empty."""
        ...

    def push_bag(self, ids: Ids, offsets: Ids, grads: Rows, *, mode: Pooling = "sum") -> None:
        """The push that belongs to `bag`: each id of a bag gets the bag's gradient, divided by its size for mean."""
        ...

    def set_lr(self, lr: float) -> None:
        """Learning rate of later pushes."""
        ...

    def counts(self, ids: Ids) -> NDArray[np.int64]:
        """Sights of each id, 0 if unknown; needs `counts` (or admission or expiry) in the configuration."""
        ...

    def shrink(self, *, min_count: int = 0, unseen_steps: int = 0, unseen_seconds: float = 0.0) -> int:
        """Drops expired rows, those with fewer sights than `min_count`, and those unseen for longer than given (0: no).

        Returns how many were dropped; their memory is given back.
        """
        ...

    def stats(self) -> Stats:
        """What the table holds and has done."""
        ...

    def wait(self) -> None:
        """Returns when every push so far is applied (at once for a local table)."""
        ...

    def save(self, path: str | PathLike[str], *, delta: bool = False, finite: bool = False) -> str:
        """Writes a snapshot of this moment atomically; with `delta`, only what changed since the last save or load.

        With `finite`, refuses rows that are no numbers any more.
        Returns the snapshot's identity, which the next delta names as its parent.
        """
        ...

    def load(self, path: str | PathLike[str]) -> None:
        """Replaces the contents by a snapshot's; a delta is applied on top of its parent, and refused on another."""
        ...
