"""Pooling of bags: several ids, one row."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps import _native
from heterps.errors import InvalidInput
from heterps.ps.arrays import ids_of
from heterps.ps.shards import Float32, Int64
from heterps.store.interface import Pooling


def check_bags(ids: Any, offsets: Any, mode: str) -> tuple[Int64, Int64]:
    """Ids and offsets as arrays, checked: one axis each, offsets from 0 on, never falling, within the ids."""
    array, starts = ids_of(ids), ids_of(offsets, "offsets")
    if mode not in ("sum", "mean"):
        raise InvalidInput(f"mode: sum or mean, not {mode!r}")
    if array.ndim != 1 or starts.ndim != 1:
        raise InvalidInput(f"ids and offsets of bags have one axis, not {array.ndim} and {starts.ndim}")
    if len(starts) == 0 and len(array):
        raise InvalidInput(f"offsets: none, but {len(array)} ids")
    if len(starts) and (starts[0] != 0 or starts[-1] > len(array) or (np.diff(starts) < 0).any()):
        raise InvalidInput(f"offsets: start at 0, never fall and end within the {len(array)} ids")
    return array, starts


def _sizes(offsets: Int64, count: int) -> Int64:
    return np.diff(offsets, append=count)


def _shares(sizes: Int64) -> Float32:
    """1 / n for each bag, for means: a local table multiplies by it too, so that both agree to the last bit."""
    return (np.float32(1) / np.maximum(sizes, 1).astype(np.float32))[:, None]


def pool(rows: Float32, offsets: Int64, mode: Pooling) -> Float32:
    """One row a bag: the sum or mean of its rows, added up in order, as local tables do; zeros for an empty one."""
    sizes = _sizes(offsets, len(rows))
    filled = sizes > 0
    pooled = np.zeros((len(offsets), rows.shape[1]), np.float32)
    if filled.any():
        sums = np.empty((int(filled.sum()), rows.shape[1]), np.float32)
        bag = np.repeat(np.arange(len(sums), dtype=np.uint32), sizes[filled])
        _native.scatter_add(np.ascontiguousarray(rows), bag, sums)
        pooled[filled] = sums
    if mode == "mean":
        pooled *= _shares(sizes)
    return pooled


def spread(grads: Float32, offsets: Int64, count: int, mode: Pooling) -> Float32:
    """The gradient of each id: its bag's, times 1 / n for the mean of n."""
    sizes = _sizes(offsets, count)
    each = grads * _shares(sizes) if mode == "mean" else grads
    return np.repeat(each, sizes, axis=0)
