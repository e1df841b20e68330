"""Sparse tables: rows of floats under any int64 id, with their optimizer, life cycle and snapshots."""

from __future__ import annotations

from heterps.store.config import Optimizer, TableConfig
from heterps.store.interface import Stats, Table
from heterps.store.table import SparseTable

__all__ = ["Optimizer", "SparseTable", "Stats", "Table", "TableConfig"]
