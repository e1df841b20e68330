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

RECENT_BATCHES = 8
"""Prepared, pulled or pushed: as many as an asynchronous run has under way (assumed)."""
RECENT_IDS = 1024
"""Fewer are told apart faster than they are looked up (assumed)."""
FEW_REPEATS = 1 / 8
"""Ids of which a smaller share has occurred before are sent as they are: to tell them apart, to spread rows and to sum
gradients takes a twelfth of a step and more where ids are uniform and a tower is small (measured); it saves few bytes.
The eighth is assumed."""


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


def scatter_add(grads: Float32, inverse: Index, count: int) -> Float32:
    """sums[j] = Σ grads[i] over inverse[i] = j, for the `count` ids and the inverse of `distinct`."""
    sums = np.empty((count, grads.shape[1]), np.float32)
    _native.scatter_add(grads, inverse, sums)
    return sums


@dataclass(frozen=True, slots=True)
class Batch:
    """Flat ids made ready for the servers: grouped by shard, each distinct one once or all, and the way back."""

    count: int
    """Ids given."""
    ids: Int64
    """What is asked for: shard s has `ids[bounds[s]:bounds[s+1]]`."""
    bounds: list[int]
    number: Index | None
    """Of each given id: its distinct one, as they first occur; None: ids were left as they are."""
    place: Index | None
    """Distinct id number n is ids[place[n]]; None: as they first occur."""
    index: Index | None
    """Given id number i is ids[index[i]]; None: as they were given."""

    def sum_into(self, grads: Float32, stretches: list[Float32]) -> None:
        """Writes the gradient of each of `ids`, summed if they are distinct, in stretches that follow each other."""
        _native.sum_stretches(grads, self.number, self.place, len(self.ids), stretches)

    def spread(self, stretches: list[Float32], out: Float32) -> None:
        """Writes the row of each given id; the rows of `ids` lie in stretches that follow each other."""
        if self.index is not None:
            _native.gather_stretches(stretches, self.index, out)
        elif stretches:
            np.concatenate(stretches, out=out)


def grouped(ids: Int64, shards: int) -> Batch:
    """All ids, duplicates too, grouped by shard in their order within each."""
    if shards == 1:
        return Batch(len(ids), ids, [0, len(ids)], None, None, None)
    by_shard, place, bounds = _native.split(ids, shards)
    return Batch(len(ids), by_shard, bounds, None, place, place)


def distinct_batch(ids: Int64, shards: int) -> Batch:
    """Each distinct id once, grouped by shard, in the order of first occurrence within each."""
    unique, number = distinct(ids)
    if shards == 1:
        return Batch(len(ids), unique, [0, len(unique)], number, None, number)
    by_shard, place, bounds = _native.split(unique, shards)
    return Batch(len(ids), by_shard, bounds, number, place, place[number])


def batch_of(ids: Int64, shards: int) -> Batch:
    """As `distinct_batch`, but ids that hardly repeat are left as they are, as by `grouped`.

    Which it is depends on the ids alone, as sums in another order are other sums.
    """
    many = len(ids) >= RECENT_IDS
    return grouped(ids, shards) if many and _native.repeats(ids) < FEW_REPEATS else distinct_batch(ids, shards)


class Recent:
    """The latest batches: a push mostly follows a pull of the same ids. Safe in several threads."""

    def __init__(self) -> None:
        self._known: deque[tuple[Int64, Batch]] = deque(maxlen=RECENT_BATCHES)

    def batch(self, ids: Int64, shards: int) -> Batch:
        """As `batch_of`, in memory of its own; compares contents, so that ids changed in place are no trap."""
        if len(ids) < RECENT_IDS:
            return batch_of(ids, shards)
        for known, batch in tuple(self._known):
            if len(known) == len(ids) and known[0] == ids[0] and _native.equal(known, ids):
                return batch
        own = ids.copy()
        batch = batch_of(own, shards)
        self._known.append((own, batch))
        return batch
