"""Which shard holds an id, and the array work around it: distinct ids, their parts, gathering rows, summing gradients.

Each step is one function; the heavy ones are the native core's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps import _native

Int64 = NDArray[np.int64]
Index = NDArray[np.uint32]
Float32 = NDArray[np.float32]

SALT = np.uint64(0x9FB21C651E98DF25)
"""Sets the shards' hash apart from any table's, so that the ids of a shard spread over all buckets of its table."""

RECENT_BATCHES = 4
RECENT_IDS = 1024
"""Fewer are told apart faster than they are looked up (assumed)."""


def shard_of(ids: Int64, shards: int) -> NDArray[np.int64]:
    """The shard of each id.

    SplitMix64's finalizer mixes (id xor SALT); its upper 32 bits h give the shard ⌊h·shards / 2³²⌋.
    """
    h = ids.astype(np.uint64) ^ SALT
    h ^= h >> np.uint64(30)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    h *= np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    h >>= np.uint64(32)
    h *= np.uint64(shards)
    h >>= np.uint64(32)
    return h.astype(np.int64)


def distinct(ids: Int64) -> tuple[Int64, Index]:
    """Each of the flat ids once, in the order of first occurrence, and where each went: `unique[inverse] == ids`."""
    unique, inverse = _native.distinct(ids)
    return unique, inverse


def gather(rows: Float32, index: Index, out: Float32) -> None:
    """out[i] = rows[index[i]]."""
    _native.gather(rows, index, out)


def scatter_add(grads: Float32, inverse: Index, count: int) -> Float32:
    """sums[j] = Σ grads[i] over inverse[i] = j, for the `count` ids and the inverse of `distinct`."""
    sums = np.empty((count, grads.shape[1]), np.float32)
    _native.scatter_add(grads, inverse, sums)
    return sums


class Recent:
    """Distinct ids of the latest batches: a push mostly follows a pull of the same ids. Safe in several threads."""

    def __init__(self) -> None:
        self._known: deque[tuple[Int64, Int64, Index]] = deque(maxlen=RECENT_BATCHES)

    def distinct(self, ids: Int64) -> tuple[Int64, Index]:
        """As `distinct`; compares contents, so that ids changed in place are no trap."""
        if len(ids) < RECENT_IDS:
            return distinct(ids)
        for known, unique, inverse in tuple(self._known):
            if len(known) == len(ids) and known[0] == ids[0] and np.array_equal(known, ids):
                return unique, inverse
        unique, inverse = distinct(ids)
        self._known.append((ids.copy(), unique, inverse))
        return unique, inverse


@dataclass(frozen=True, slots=True)
class Parts:
    """Ids grouped by shard: shard s has `ids[bounds[s]:bounds[s+1]]`."""

    ids: Int64
    bounds: list[int]
    order: Index | None
    """ids[i] is the given id number order[i]; None: as they were."""

    def place(self) -> Index | None:
        """The given id number j is ids[place[j]]; None: as they were."""
        if self.order is None:
            return None
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(place), dtype=np.uint32)
        return place

    def arrange(self, rows: Float32) -> Float32:
        """Rows of the given ids as rows of the grouped ones."""
        if self.order is None:
            return rows
        arranged = np.empty_like(rows)
        gather(rows, self.order, arranged)
        return arranged


def split(ids: Int64, shards: int) -> Parts:
    """Groups flat ids by shard, in their order within each."""
    if shards == 1:
        return Parts(ids, [0, len(ids)], None)
    shard = shard_of(ids, shards)
    order = np.argsort(shard.astype(np.uint16), kind="stable")  # radix sort: a server takes at most 65,536 shards
    counts = np.bincount(shard, minlength=shards)
    return Parts(ids[order], [0, *np.cumsum(counts).tolist()], order.astype(np.uint32))
