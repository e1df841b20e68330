"""Pooling of bags: several ids, one row."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps.errors import InvalidInput
from heterps.ps.arrays import to_numpy
from heterps.ps.shards import Float32, Int64
from heterps.store.interface import Pooling


def check_bags(ids: Any, offsets: Any, mode: str) -> tuple[Int64, Int64]:
    """Ids and offsets as arrays, checked: one axis each, offsets from 0 on, never falling, within the ids."""
    array, starts = to_numpy(ids, np.int64, "ids"), to_numpy(offsets, np.int64, "offsets")
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


def pool(rows: Float32, offsets: Int64, mode: Pooling) -> Float32:
    """One row a bag: the sum or mean of its rows; zeros for an empty one."""
    sizes = _sizes(offsets, len(rows))
    filled = sizes > 0
    pooled = np.zeros((len(offsets), rows.shape[1]), np.float32)
    if filled.any():  # a segment ends where the next bag that is not empty starts
        pooled[filled] = np.add.reduceat(rows, offsets[filled], axis=0)
    if mode == "mean":
        pooled /= np.maximum(sizes, 1).astype(np.float32)[:, None]
    return pooled


def spread(grads: Float32, offsets: Int64, count: int, mode: Pooling) -> Float32:
    """The gradient of each id: its bag's, divided by the bag's size for mean."""
    sizes = _sizes(offsets, count)
    each = grads / np.maximum(sizes, 1).astype(np.float32)[:, None] if mode == "mean" else grads
    return np.repeat(each, sizes, axis=0)
