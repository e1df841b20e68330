"""The native table under load: many ids, several threads, and what it keeps of a pull for the push that follows."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps.store import SparseTable
from heterps.store.config import Optimizer, TableConfig
from tests.store.reference import ReferenceTable, first_value

THREADS = pytest.mark.parametrize("threads", [1, 2])


def plain_table(*, threads: int = 1, dim: int = 1, **options: Any) -> Any:
    """Rows start at 0; a push of g makes them fall by g exactly, while numbers stay below 2²⁴."""
    return SparseTable(dim=dim, optimizer="sgd", lr=1.0, init_scale=0.0, threads=threads, **options)


def push_in_batches(table: Any, ids: Any, values: Any, *, size: int = 65_536) -> None:
    for first in range(0, len(ids), size):
        batch = slice(first, first + size)
        table.pull(ids[batch])
        table.push(ids[batch], np.repeat(values[batch, None], table.config.dim, axis=1))


def spread_ids(kind: str, count: int) -> Any:
    numbers = np.arange(count, dtype=np.int64)
    with np.errstate(over="ignore"):
        return {
            "random": lambda: np.unique(np.random.default_rng(0).integers(-(2**63), 2**63 - 1, count)),
            "in order": lambda: numbers - count // 2,
            "same low half": lambda: numbers << 32,
            "far strides": lambda: numbers * (2**44 + 1),
            "bit patterns": lambda: numbers ^ (numbers << 40),
        }[kind]()


@THREADS
@pytest.mark.parametrize("kind", ["random", "in order", "same low half", "far strides", "bit patterns"])
def test_every_id_keeps_its_own_row(kind: str, threads: int) -> None:
    count = 1_000_000 if kind == "random" else 200_000
    ids = spread_ids(kind, count)
    values = np.arange(1, len(ids) + 1, dtype=np.float32)
    table = plain_table(threads=threads)
    push_in_batches(table, ids, values)
    assert table.stats().rows == len(ids)
    order = np.random.default_rng(1).permutation(len(ids))
    np.testing.assert_array_equal(table.pull(ids[order])[:, 0], -values[order])
    known = set(ids.tolist())
    others = np.array([i for i in (ids + 1).tolist() if i not in known][:50_000], np.int64)
    assert not table.pull(others, create=False).any()
    assert table.stats().rows == len(ids)


@THREADS
def test_rows_dropped_and_made_again(threads: int) -> None:
    table = plain_table(threads=threads, counts=True)
    ids = spread_ids("random", 100_000)
    values = np.arange(1, len(ids) + 1, dtype=np.float32)
    push_in_batches(table, ids, values)
    table.pull(ids[::2])
    full_bytes = table.stats().bytes
    for _ in range(3):
        assert table.shrink(min_count=2) == len(ids) // 2
        assert table.stats().bytes < full_bytes * 0.8
        np.testing.assert_array_equal(table.pull(ids[::2], create=False)[:, 0], -values[::2])
        assert not table.pull(ids[1::2], create=False).any()
        push_in_batches(table, ids[1::2], values[1::2])
        np.testing.assert_array_equal(table.pull(ids, create=False)[:, 0], -values)
    assert table.stats().rows == len(ids)


def test_first_values_do_not_depend_on_when_a_row_was_made() -> None:
    config = TableConfig(dim=4, seed=3)
    table = SparseTable.from_config(config, threads=2)
    ids = spread_ids("random", 200_000)
    table.pull(ids)
    for row_id in (*ids[:3].tolist(), *ids[-3:].tolist()):
        np.testing.assert_array_equal(table.pull(np.array(row_id)), first_value(config, row_id))


# A snapshot has the order of the index it came from. To a small index that order is the worst there is, unless the two
# place ids differently: all go to its first buckets, and each insert searches past those before it.


def fastest_s(action: Callable[[Any], object], *, times: int = 3) -> float:
    """Processor seconds of the fastest of some runs, each on an empty table."""
    seconds = []
    for _ in range(times):
        table = plain_table()
        began_s = time.process_time()
        action(table)
        seconds.append(time.process_time() - began_s)
    return min(seconds)


def test_ids_in_the_order_of_a_snapshot_cost_what_others_cost(tmp_path: Path) -> None:
    saved, ids = plain_table(), spread_ids("random", 100_000)
    saved.pull(ids)
    saved.save(tmp_path / "snapshot")
    saved.export(tmp_path / "rows.parquet")
    in_order = pq.read_table(tmp_path / "rows.parquet")["id"].to_numpy()
    assert sorted(in_order.tolist()) == ids.tolist()
    shuffled = np.random.default_rng(1).permutation(ids)
    usual_s = fastest_s(lambda table: table.pull(shuffled))
    pulled_s = fastest_s(lambda table: table.pull(in_order))
    loaded_s = fastest_s(lambda table: table.load(tmp_path / "snapshot"))
    assert pulled_s < 5 * usual_s, f"{pulled_s / usual_s:.1f} times as long as shuffled"
    assert loaded_s < 5 * usual_s, f"{loaded_s / usual_s:.1f} times as long as shuffled"


# Several Python threads at once


def run_all(workers: list[threading.Thread], failed: list[BaseException]) -> None:
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed, failed


@THREADS
def test_pushes_of_several_threads_add_up(threads: int) -> None:
    table = plain_table(threads=threads, dim=16)
    expected = np.zeros(3000, np.int64)
    plans = [np.random.default_rng(worker).integers(0, 3000, (40, 500)) for worker in range(4)]
    for plan in plans:
        np.add.at(expected, plan.reshape(-1), 1)
    failed: list[BaseException] = []

    def push(plan: Any) -> None:
        try:
            for number, ids in enumerate(plan):
                if number % 3 == 0:
                    table.pull(ids)
                table.push(ids, np.ones((len(ids), 16), np.float32))
        except BaseException as error:
            failed.append(error)

    def read() -> None:
        try:
            ids = np.arange(3000, dtype=np.int64)
            last = np.zeros(3000)
            for _ in range(50):
                rows = table.pull(ids, create=False)
                assert (rows == rows[:, :1]).all(), "a row was read half updated"
                assert (rows[:, 0] <= last).all(), "a row went back"
                last = rows[:, 0]
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=push, args=(plan,)) for plan in plans]
    run_all([*workers, threading.Thread(target=read)], failed)
    rows = table.pull(np.arange(3000, dtype=np.int64), create=False)
    np.testing.assert_array_equal(rows, -np.repeat(expected[:, None], 16, axis=1))
    assert table.stats().steps == 160


@THREADS
def test_everything_at_once(threads: int, tmp_path: Path) -> None:
    table = plain_table(threads=threads, dim=4, counts=True)
    ids = np.arange(2000, dtype=np.int64)
    table.pull(np.repeat(ids, 10))  # seen often: shrinking leaves them
    failed: list[BaseException] = []

    def repeat(times: int, action: Any) -> threading.Thread:
        def work() -> None:
            try:
                for number in range(times):
                    action(number)
            except BaseException as error:
                failed.append(error)

        return threading.Thread(target=work)

    def pass_by(number: int) -> None:
        table.pull(np.arange(10_000 + 500 * number, 10_500 + 500 * number, dtype=np.int64))

    run_all(
        [
            repeat(100, lambda n: table.push(ids, np.ones((2000, 4), np.float32))),
            repeat(100, pass_by),
            repeat(20, lambda n: table.shrink(min_count=5)),
            repeat(10, lambda n: table.save(tmp_path / "snapshot")),
            repeat(100, lambda n: table.stats()),
        ],
        failed,
    )
    assert (table.pull(ids, create=False) == -100).all()
    table.shrink(min_count=5)
    assert table.stats().rows == 2000


# A push uses what the pull before it found. Nobody may notice.

A = np.array([5, -9, 5, 2**62, 7], np.int64)
B = np.array([7, 5, 1], np.int64)
C = np.array([100, 5, 101, 2**62, 5], np.int64)
BATCHES = {"A": A, "B": B, "C": C}


def small_config(**options: Any) -> TableConfig:
    return TableConfig(dim=2, optimizer=Optimizer(name="adagrad", lr=0.5), seed=1, **options)


def perform(table: Any, action: str) -> Any:
    """`verb batch`, with a gradient that follows from the batch."""
    verb, _, name = action.partition(" ")
    if verb == "shrink":
        return table.shrink(**{rule: int(limit) for rule, _, limit in [name.partition("=")] if rule})
    ids = BATCHES[name]
    grads = (np.arange(2 * len(ids), dtype=np.float32).reshape(-1, 2) - 3) / 4
    offsets = np.array([0, 2], np.int64)
    if verb == "pull":
        return table.pull(ids)
    if verb == "peek":
        return table.pull(ids, create=False)
    if verb == "push":
        return table.push(ids, grads)
    if verb == "bag":
        return table.bag(ids, offsets)
    return table.push_bag(ids, offsets, grads[:2])


def assert_like_reference(actions: list[str], threads: int, **options: Any) -> None:
    config = small_config(**options)
    table, reference = SparseTable.from_config(config, threads=threads), ReferenceTable(config)
    known = np.unique(np.concatenate(list(BATCHES.values())))
    for action in actions:
        mine, theirs = perform(table, action), perform(reference, action)
        if isinstance(theirs, np.ndarray):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6, err_msg=action)
        else:
            assert mine == theirs, action
        rows, expected = table.pull(known, create=False), reference.pull(known, create=False)
        np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6, err_msg=action)
        if config.tracks:
            assert table.counts(known).tolist() == reference.counts(known).tolist(), action


@THREADS
@pytest.mark.parametrize(
    "actions",
    [
        "pull A, push A, push A",
        "pull A, pull B, push A, push B",
        "pull A, pull C, push C, push A, push B",
        "pull A, push B, push A",
        "pull A, peek B, push A, peek A, push A",
        "pull A, shrink min_count=9, push A",
        "pull A, pull B, shrink min_count=2, push A, push B",
        "pull A, push A, push B, push B, push B, shrink unseen_steps=3, push A",
        "pull A, push B, push B, push B, push A, shrink unseen_steps=2",
        "bag A, push_bag A, push A",
        "pull A, push_bag A, bag A, push A",
        "pull A, pull B, pull C, pull B, pull C, pull B, push A",
    ],
)
def test_a_push_after_pulls_is_a_push(actions: str, threads: int) -> None:
    assert_like_reference(actions.split(", "), threads, counts=True)


ACTIONS = st.sampled_from(
    [f"{verb} {name}" for verb in ("pull", "push", "peek", "bag", "push_bag") for name in BATCHES]
    + ["shrink", "shrink min_count=2", "shrink min_count=4", "shrink unseen_steps=2"]
)


@THREADS
@pytest.mark.parametrize("options", [{"counts": True}, {"admit_after": 2}, {"expire_steps": 2}], ids=str)
def test_any_order_of_the_same_few_batches(options: dict[str, Any], threads: int) -> None:
    @settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(ACTIONS, max_size=16))
    def check(actions: list[str]) -> None:
        assert_like_reference(actions, threads, **options)

    check()


@THREADS
def test_an_array_filled_anew_is_another_batch(threads: int) -> None:
    table = plain_table(threads=threads)
    ids = np.array([1, 2, 3], np.int64)
    table.pull(ids)
    ids[:] = [3, 4, 4]
    table.push(ids, np.ones((3, 1), np.float32))
    rows = table.pull(np.arange(1, 6, dtype=np.int64), create=False)
    assert rows[:, 0].tolist() == [0, 0, -1, -2, 0]


@THREADS
def test_growth_between_pull_and_push(threads: int) -> None:
    table = plain_table(threads=threads)
    ids = np.arange(1000, dtype=np.int64)
    table.pull(ids)
    table.pull(np.arange(10_000, 300_000, dtype=np.int64))
    table.push(ids, np.ones((1000, 1), np.float32))
    assert (table.pull(ids) == -1).all()
    assert not table.pull(np.arange(10_000, 300_000, dtype=np.int64), create=False).any()


@THREADS
def test_a_load_between_pull_and_push(threads: int, tmp_path: Path) -> None:
    table = plain_table(threads=threads)
    few, many = np.array([3, 1], np.int64), np.arange(1000, dtype=np.int64)[::-1].copy()
    table.push(many, np.ones((1000, 1), np.float32))
    table.save(tmp_path / "snapshot")
    other = plain_table(threads=threads)
    other.pull(few)
    other.load(tmp_path / "snapshot")
    other.push(few, np.ones((2, 1), np.float32))
    table.push(few, np.ones((2, 1), np.float32))
    np.testing.assert_array_equal(other.pull(many), table.pull(many))


REPLACED = """
import sys
import numpy as np
from heterps.store import SparseTable

way, folder = sys.argv[1:]
for n in (100, 288, 700, 1500, 2000, 2500, 3700, 9000):
    old, new = np.arange(n), np.arange(10**6, 10**6 + n)
    if way == "admission":
        table = SparseTable(dim=1, optimizer="sgd", admit_after=2)
        for ids in (old, old, new, new):
            table.pull(ids)
    else:
        table, copy = (SparseTable(dim=1, optimizer="sgd", counts=True) for _ in range(2))
        table.pull(old)
        table.save(f"{folder}/whole{n}")
        table.shrink(min_count=2)
        table.pull(new)
        table.save(f"{folder}/delta{n}", delta=True)
        for name in ("whole", "delta"):
            copy.load(f"{folder}/{name}{n}")
        table = copy
    assert (table.counts(new) == (2 if way == "admission" else 1)).all(), n
"""


@pytest.mark.parametrize("way", ["admission", "delta"])
def test_all_ids_may_be_replaced_by_others(way: str, tmp_path: Path) -> None:
    """The index is made anew for few ids while as many as before come in. In a process of its own: once it hung."""
    subprocess.run([sys.executable, "-c", REPLACED, way, str(tmp_path)], check=True, timeout=300)
