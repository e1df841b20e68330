"""What a table remembers of pulls for the pushes that follow: as much as they need, and little where none follow."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np

from heterps.store import SparseTable

IDS = 200_000


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_pulls_without_pushes_take_little_memory() -> None:
    table, out = SparseTable(dim=8, optimizer="sgd"), np.empty((IDS, 8), np.float32)
    ids = np.arange(IDS)
    for _ in range(3):
        table.pull(ids, out=out)
    before = resident()
    for _ in range(40):
        table.pull(ids, out=out)
    assert resident() - before < 4 * 36 * IDS  # 32 remembered pulls would be eight times as much


def test_as_many_as_are_pulled_before_they_are_pushed() -> None:
    table = SparseTable(dim=8, optimizer="sgd", lr=1.0, init_scale=0.0)
    parts = [np.arange(IDS) + IDS * part for part in range(6)]
    grads = np.ones((IDS, 8), np.float32)
    known = []
    for _ in range(12):
        for ids in parts:
            table.pull(ids)
        known.append(table.push_parts(parts, [grads] * len(parts)))
        if not known[-1]:
            table.push(np.concatenate(parts), np.concatenate([grads] * len(parts)))
    assert known[-1]
    assert known == sorted(known)  # it learns, once
    np.testing.assert_array_equal(table.pull(parts[3]), np.full((IDS, 8), -12.0, np.float32))
