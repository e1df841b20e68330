"""Bags of a local table and of a client of servers, which pools them itself, agree to the last bit."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from heterps.ps.bags import pool, spread
from heterps.store import SparseTable


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_bags_here_and_there_are_the_same(mode: Literal["sum", "mean"], dim: int) -> None:
    rng = np.random.default_rng(dim)
    offsets = np.concatenate([[0], np.cumsum(rng.integers(0, 60, 400))])
    ids = np.arange(offsets[-1] + 7)
    here, there = (SparseTable(dim=dim, optimizer="sgd", lr=1.0, init_scale=0.0) for _ in range(2))
    grads = rng.standard_normal((len(offsets), dim)).astype(np.float32)
    here.push_bag(ids, offsets, grads, mode=mode)
    there.push(ids, spread(grads, offsets, len(ids), mode))
    np.testing.assert_array_equal(here.pull(ids), there.pull(ids))
    for table in (here, there):
        table.put(ids, np.random.default_rng(0).standard_normal((len(ids), dim)).astype(np.float32))
    np.testing.assert_array_equal(here.bag(ids, offsets, mode=mode), pool(there.pull(ids), offsets, mode))
