"""Decoded rows: columns by name, each a NumPy array or ragged; taken, joined and handed over as a batch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from heterps.models import Bags, Batch

Int64s: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ragged:
    """A column with any number of ids in a row: row b has ids[offsets[b]:offsets[b+1]]."""

    ids: Int64s
    offsets: Int64s

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, rows: Int64s | slice) -> Ragged:
        """These rows, in this order."""
        if isinstance(rows, slice):
            offsets = self.offsets[rows.start : rows.stop + 1]
            return Ragged(self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])
        starts, sizes = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        offsets = np.concatenate(([0], np.cumsum(sizes)))
        return Ragged(self.ids[np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])], offsets)

    @staticmethod
    def join(parts: Sequence[Ragged]) -> Ragged:
        """The rows of all parts, one after the other."""
        sizes = np.concatenate([np.diff(part.offsets) for part in parts])
        return Ragged(np.concatenate([part.ids for part in parts]), np.concatenate(([0], np.cumsum(sizes))))


Column: TypeAlias = NDArray[Any] | Ragged
Columns: TypeAlias = dict[str, Column]


def columns_of(
    label: NDArray[np.float32] | None,
    dense: NDArray[np.float32],
    ids: Int64s,
    bags: dict[str, tuple[Int64s, Int64s]],
) -> Columns:
    """Columns under the names that models read; what has no column (no label, no dense feature, ...) is left out."""
    columns: Columns = {}
    if dense.shape[1]:
        columns["dense"] = dense
    if ids.shape[1]:
        columns["ids"] = ids
    columns |= {name: Ragged(*bag) for name, bag in bags.items()}
    if label is not None:
        columns["label"] = label
    return columns


def count(columns: Columns) -> int:
    """Rows of the columns; none if there is no column."""
    return len(next(iter(columns.values()), ()))


def some(columns: Columns, names: Collection[str]) -> Columns:
    """Those of these names."""
    return {name: column for name, column in columns.items() if name in names}


def take(columns: Columns, rows: Int64s | slice) -> Columns:
    """These rows, in this order; views for a slice (with start and stop)."""
    return {name: column.take(rows) if isinstance(column, Ragged) else column[rows] for name, column in columns.items()}


def join(parts: Sequence[Columns]) -> Columns:
    """The rows of all parts, one after the other. One part is given back as it is."""
    if len(parts) == 1:
        return parts[0]
    joined: Columns = {}
    for name, first in parts[0].items():
        same: list[Any] = [part[name] for part in parts]
        joined[name] = Ragged.join(same) if isinstance(first, Ragged) else np.concatenate(same)
    return joined


def to_batch(columns: Columns) -> Batch:
    """The columns as tensors, without a copy."""
    return {
        name: Bags(torch.from_numpy(column.ids), torch.from_numpy(column.offsets))
        if isinstance(column, Ragged)
        else torch.from_numpy(column)
        for name, column in columns.items()
    }
