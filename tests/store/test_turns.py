"""Saves, loads, scans and shrinks of one table follow each other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from heterps.errors import InvalidInput
from heterps.store import SparseTable
from heterps.store.turns import Turns

LIMIT_S = 150.0


def full_table(rows: int = 100) -> SparseTable:
    table = SparseTable(dim=4, optimizer="sgd", lr=1.0, init_scale=0.0)
    table.push(np.arange(rows), -np.ones((rows, 4), np.float32))
    return table


def test_deltas_at_once_are_a_chain(tmp_path: Path) -> None:
    table = full_table(20_000)
    ids = np.arange(20_000)
    table.save(tmp_path / "whole")
    start = threading.Barrier(4)

    def save(number: int) -> None:
        start.wait(LIMIT_S)
        table.push(ids, -np.ones((len(ids), 4), np.float32))
        table.save(tmp_path / str(number), delta=True)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    loaded, left = SparseTable(dim=4, optimizer="sgd", lr=1.0, init_scale=0.0), set(range(4))
    loaded.load(tmp_path / "whole")
    while left:  # in the order that they name each other in
        fitting = next((number for number in left if _loads(loaded, tmp_path / str(number))), None)
        assert fitting is not None, f"none of the deltas {left} goes on from {loaded.snapshot_id}"
        left.remove(fitting)
    np.testing.assert_array_equal(loaded.pull(ids), table.pull(ids))


def _loads(table: SparseTable, path: Path) -> bool:
    try:
        table.load(path)
    except InvalidInput:
        return False
    return True


@pytest.mark.parametrize("what", ["save", "load", "shrink", "export", "scan"])
def test_a_thread_does_not_wait_for_its_own_scan(tmp_path: Path, what: str) -> None:
    table = full_table()
    table.save(tmp_path / "before")
    actions: dict[str, Callable[[], object]] = {
        "save": lambda: table.save(tmp_path / "within"),
        "load": lambda: table.load(tmp_path / "before"),
        "shrink": table.shrink,
        "export": lambda: table.export(tmp_path / "rows"),
        "scan": lambda: list(table.scan()),
    }
    scan = table.scan()
    next(scan)
    with pytest.raises(InvalidInput, match=f"^{what} of a table whose scan"):
        actions[what]()
    assert (table.pull(np.arange(100)) == 1).all()
    scan.close()
    actions[what]()


def test_others_wait_for_a_scan(tmp_path: Path) -> None:
    table = full_table()
    scan = table.scan()
    next(scan)
    other = threading.Thread(target=lambda: table.save(tmp_path / "later"))
    other.start()
    assert not (tmp_path / "later").exists()
    scan.close()
    other.join(LIMIT_S)
    assert (tmp_path / "later").exists()


def test_a_turn_ends_with_an_error() -> None:
    turns = Turns()
    with pytest.raises(ZeroDivisionError), turns.take("load"):
        raise ZeroDivisionError
    with turns.take("save"):
        pass
