"""Ids and rows as NumPy arrays, under the rules of a local table; torch is not imported unless a tensor comes in."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.store.arrays import as_ids, as_rows, is_tensor, rows_like


def ids_of(ids: Any, what: str = "ids") -> NDArray[np.int64]:
    """The ids, contiguous; see `as_ids`."""
    return _array(as_ids(ids, what))


def rows_of(rows: Any, shape: tuple[int, ...], what: str = "gradients") -> NDArray[np.float32]:
    """Rows or gradients, contiguous; see `as_rows`."""
    return _array(as_rows(rows, shape, what))


def rows_for(ids: Any, shape: tuple[int, ...], out: Any | None) -> tuple[Any, NDArray[np.float32]]:
    """Rows to give back, `out` or new ones of the same kind as the ids, and the memory to write them to."""
    rows = rows_like(ids, shape, out)
    return rows if out is None else out, _array(rows)


def like(ids: Any, rows: NDArray[np.float32]) -> Any:
    """Rows as what the ids are: a tensor on the same memory, or as they are."""
    return sys.modules["torch"].from_numpy(rows) if is_tensor(ids) else rows


def _array(values: Any) -> NDArray[Any]:
    array: NDArray[Any] = values.numpy() if is_tensor(values) else values
    return array
