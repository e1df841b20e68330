"""Memory stays where it is, however long a run goes."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps.models import Batch
from heterps.runtime import train
from tests.runtime.chains import random_batches
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan
from tests.runtime.test_layers import CASES

BATCHES = random_batches(10, size=64)
MODES: list[dict[str, Any]] = [{}, {"mode": "async", "staleness": 3, "clip_norm": 1.0}]


def rss_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth_bytes(first: int, last: int, **settings: Any) -> int:
    """Between step `first` and step `last` of a run over fixed ids."""
    seen: list[int] = []

    def batches() -> Iterator[Batch]:
        for step in range(last):
            if step == first:
                seen.append(rss_bytes())
            yield BATCHES[step % len(BATCHES)]

    chain = CASES["one_table_at_both_ends"]()
    train(chain, batches(), make_plan(chain, (1, 4)), micro_batches=2, optimizer=sgd, **settings)
    return rss_bytes() - seen[0]


def grows(limit_bytes: int, first: int, last: int, **settings: Any) -> bool:
    """Each time: allocators take memory once in a while that threads happen to need at the same time, a leak always."""
    return all(growth_bytes(first, last, **settings) >= limit_bytes for _ in range(3))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize("settings", MODES, ids=["sync", "async"])
def test_memory_does_not_grow(settings: dict[str, Any]):
    """Over 1200 steps: less than 2 KiB a step, where a batch's tensors are ten times that."""
    assert not grows(1200 * 2048, 300, 1500, **settings)


@pytest.mark.soak
@pytest.mark.parametrize("settings", MODES, ids=["sync", "async"])
def test_memory_does_not_grow_over_many_steps(settings: dict[str, Any]):
    """Over 10,000 steps: less than 200 bytes a step; losses and counters are some of them."""
    assert not grows(10_000 * 200, 1000, 11_000, **settings)
