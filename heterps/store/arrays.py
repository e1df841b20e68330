"""Ids and rows as they come in, NumPy or torch, and rows of the same kind to give back. Nothing is copied."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from heterps.errors import InvalidInput


def is_tensor(values: Any) -> bool:
    """True for a torch tensor; never imports torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def as_ids(ids: Any, what: str = "ids") -> Any:
    """The ids as they are if the core can read them in place; contiguous if they were not. int64 only."""
    values: Any = ids if is_tensor(ids) else np.asarray(ids)
    if is_tensor(values):
        if values.dtype is not sys.modules["torch"].int64 or not values.is_cpu:
            raise InvalidInput(f"{what} are int64 on the CPU, not {values.dtype} on {values.device}")
        return values.detach().contiguous()
    if values.dtype != np.int64:
        if values.size == 0 and not hasattr(ids, "dtype"):
            return values.astype(np.int64)
        raise InvalidInput(f"{what} are int64, not {values.dtype}; convert them with .astype(np.int64)")
    return np.ascontiguousarray(values).reshape(values.shape)


def as_flat_ids(ids: Any) -> Any:
    """The same, of one axis only."""
    given = as_ids(ids)
    if given.ndim != 1:
        raise InvalidInput(f"ids have one axis here, not {given.ndim}; flatten them with .reshape(-1)")
    return given


def as_rows(rows: Any, shape: tuple[int, ...], what: str) -> Any:
    """Gradients or rows, float32 and of the given shape."""
    values: Any = rows if is_tensor(rows) else np.asarray(rows)
    if tuple(values.shape) != shape:
        raise InvalidInput(f"{what} have the ids' shape and one axis of dim: {shape}, not {tuple(values.shape)}")
    if values.dtype != (sys.modules["torch"] if is_tensor(values) else np).float32:
        raise InvalidInput(f"{what} are float32, not {values.dtype}")
    if is_tensor(values):
        if not values.is_cpu:
            raise InvalidInput(f"{what} are on the CPU, not on {values.device}")
        return values.detach().contiguous()
    return np.ascontiguousarray(values).reshape(shape)


def rows_like(ids: Any, shape: tuple[int, ...], out: Any | None) -> Any:
    """`out` if given and fit to be written to, else new rows of the same kind as the ids."""
    if out is None:
        return sys.modules["torch"].empty(shape) if is_tensor(ids) else np.empty(shape, dtype=np.float32)
    given = as_rows(out, shape, "rows to write to")
    if given is not out and not (is_tensor(out) and out.is_contiguous()) and not _same_memory(given, out):
        raise InvalidInput("rows to write to are contiguous float32")
    if isinstance(given, np.ndarray) and not given.flags.writeable:
        raise InvalidInput("rows to write to are writeable, not read-only")
    return given


def _same_memory(one: Any, other: Any) -> bool:
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    return one.size == 0 or np.shares_memory(one, other)  # nothing is written to rows that are none
