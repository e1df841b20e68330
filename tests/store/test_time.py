"""The table's time: it never goes back, whoever looked at the clock first, and no row is lost by it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps.store import SparseTable

IDS = np.arange(3)
EXPIRES_S = 3600
LIMIT_S = 150.0


class Clock:
    def __init__(self, now_s: float = 100.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def aging_table(clock: Any, **options: Any) -> SparseTable:
    """Rows start at 0; a push of -1 makes them 1, and expiry makes them 0 again."""
    return SparseTable(dim=2, optimizer="sgd", lr=1.0, init_scale=0.0, expire_seconds=EXPIRES_S, clock=clock, **options)


def train(table: SparseTable, ids: Any = IDS) -> None:
    table.push(ids, -np.ones((len(ids), 2), np.float32))


def is_trained(table: SparseTable, ids: Any = IDS) -> bool:
    return bool((table.pull(ids) == 1).all()) and table.stats().expired == 0


@pytest.mark.parametrize("back_s", [1, 10, 1000])
def test_a_clock_that_goes_back_loses_no_row(back_s: float) -> None:
    clock = Clock()
    table = aging_table(clock)
    clock.now_s += 10
    train(table)
    clock.now_s -= back_s
    assert is_trained(table)
    assert table.shrink(unseen_seconds=5) == 0
    clock.now_s += back_s + EXPIRES_S
    assert is_trained(table)
    clock.now_s += EXPIRES_S + 1
    assert not table.pull(IDS).any()


def test_a_call_that_waited_for_a_later_one_loses_no_row() -> None:
    """Both look at the clock before they get their turn, and the one that was late to look may be first to get it."""
    clock, reached, go_on = Clock(), threading.Event(), threading.Event()
    main = threading.get_ident()

    def slow_clock() -> float:
        now_s = clock()
        if threading.get_ident() != main:
            reached.set()
            assert go_on.wait(LIMIT_S)
        return now_s

    table = aging_table(slow_clock)
    late = threading.Thread(target=lambda: table.pull(IDS))
    late.start()
    assert reached.wait(LIMIT_S)
    clock.now_s += 5
    train(table)
    go_on.set()
    late.join()
    assert is_trained(table)


def test_a_save_that_waited_knows_the_time_of_its_rows(tmp_path: Path) -> None:
    clock = Clock()
    table = aging_table(clock)
    train(table)
    early_s = table.seconds
    clock.now_s += 5
    assert is_trained(table)
    steps, seconds, *_ = table._core.begin_save(False, early_s)
    table._core.end_save(False)
    assert (steps, seconds) == (1, 5)


def test_time_goes_on_from_a_snapshot(tmp_path: Path) -> None:
    clock = Clock()
    table = aging_table(clock)
    clock.now_s += 10
    train(table)
    clock.now_s += 1000
    table.save(tmp_path / "table.hps")
    clock.now_s += 10_000_000  # while it lay on disk
    loaded = aging_table(clock)
    clock.now_s += 10_000_000  # and while the new table was empty
    loaded.load(tmp_path / "table.hps")
    assert loaded.shrink(unseen_seconds=1000) == 0
    assert loaded.shrink(unseen_seconds=999) == 3


def test_shards_that_are_ahead_of_each_other(tmp_path: Path) -> None:
    """By seconds and by steps: rows seen at the end in their shard are seen at the end in what is loaded from both."""
    clock = Clock()
    old = aging_table(clock, expire_steps=5)
    clock.now_s += 10_000
    new = aging_table(clock, expire_steps=5)
    clock.now_s += 10
    for _ in range(20):
        old.push(np.array([9]), np.zeros((1, 2), np.float32))
    train(old, np.array([1]))
    train(new, np.array([2]))
    old.save(tmp_path / "0.hps")
    new.save(tmp_path / "1.hps")
    both = aging_table(clock, expire_steps=5)
    both.load(tmp_path)
    assert is_trained(both, np.array([1, 2]))


def test_candidates_of_shards_that_are_ahead(tmp_path: Path) -> None:
    clock = Clock()
    old = aging_table(clock, admit_after=2)
    clock.now_s += 10_000
    new = aging_table(clock, admit_after=2)
    for number, table in enumerate((old, new)):
        table.pull(np.array([number]))
        table.save(tmp_path / f"{number}.hps")
    both = aging_table(clock, admit_after=2)
    both.load(tmp_path)
    assert both.counts(np.array([0, 1])).tolist() == [1, 1]


def test_rows_that_are_put_are_seen_now() -> None:
    clock = Clock()
    table = aging_table(clock)
    clock.now_s += 2 * EXPIRES_S
    table.put(IDS, np.ones((3, 2), np.float32))
    assert is_trained(table)


def test_rows_that_were_seen_later_than_their_snapshot_says() -> None:
    """As files of saves that waited have them, from before saves knew the time of their rows."""
    table = aging_table(Clock(), expire_steps=5)
    table._core.begin_load(True, 10, 10, 0)
    table._core.insert(IDS, np.ones((3, 2), np.float32), np.empty((3, 0), np.float32),
                       np.array([[1, 50, 50]] * 3, np.uint32))  # fmt: skip
    table._core.end_load()
    assert is_trained(table)
