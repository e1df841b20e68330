"""Snapshots: of one moment, complete or refused, whatever happens to the process or the file."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.errors import HeterPSError, InvalidInput
from heterps.store import SparseTable

KILLS = 4
LIMIT_S = 150.0


def counting_table(*, optimizer: str = "sgd", threads: int = 1, dim: int = 8) -> Any:
    """Rows start at 0 and fall by a known amount with each push of ones: a row tells how many pushes it has seen."""
    return SparseTable(dim=dim, optimizer=optimizer, lr=1.0, init_scale=0.0, threads=threads, name="counting")


def some_table(*, threads: int = 1, **options: Any) -> Any:
    return SparseTable(dim=3, optimizer="adagrad", lr=0.1, seed=5, threads=threads, **options)


def push_some(table: Any, seed: int, *, count: int = 20) -> None:
    rng = np.random.default_rng(seed)
    ids = rng.integers(-40, 40, count)
    table.pull(ids)
    table.push(ids, rng.standard_normal((count, 3)).astype(np.float32))


def rows_of(table: Any) -> Any:
    return table.pull(np.arange(-50, 50, dtype=np.int64), create=False)


def ones(ids: Any, dim: int = 8) -> Any:
    return np.ones((len(ids), dim), np.float32)


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# Damaged files


def assert_refused(table: Any, path: Path, before: Any, what: str) -> None:
    try:
        with pytest.raises(InvalidInput, match=path.name):
            table.load(path)
    except pytest.fail.Exception:
        pytest.fail(f"loaded with {what}")
    np.testing.assert_array_equal(rows_of(table), before, err_msg=f"changed by a refused load: {what}")


@pytest.mark.parametrize("delta", [False, True])
def test_a_change_of_any_byte_is_noticed(tmp_path: Path, delta: bool) -> None:
    table, path = some_table(counts=True), tmp_path / "snapshot.hps"
    table.save(tmp_path / "first")
    push_some(table, 1, count=6)
    table.save(path, delta=delta)
    good = path.read_bytes()
    other = some_table(counts=True)
    other.load(tmp_path / "first")
    push_some(other, 2)
    before = rows_of(other)
    for at in range(len(good)):
        damaged = bytearray(good)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        assert_refused(other, path, before, f"byte {at} of {len(good)} changed")


@pytest.mark.parametrize("delta", [False, True])
def test_a_cut_at_any_place_is_noticed(tmp_path: Path, delta: bool) -> None:
    table, path = some_table(), tmp_path / "snapshot.hps"
    table.save(tmp_path / "first")
    push_some(table, 1, count=6)
    table.save(path, delta=delta)
    good = path.read_bytes()
    other = some_table()
    other.load(tmp_path / "first")
    before = rows_of(other)
    for size in range(len(good)):
        path.write_bytes(good[:size])
        assert_refused(other, path, before, f"only {size} of {len(good)} bytes")
    path.write_bytes(good + b"\0")
    assert_refused(other, path, before, "a byte too many")
    path.write_bytes(good)
    other.load(path)
    np.testing.assert_array_equal(rows_of(other), rows_of(table))


def test_damage_far_into_a_large_file_changes_nothing(tmp_path: Path) -> None:
    table, path = counting_table(), tmp_path / "large.hps"
    ids = np.arange(300_000, dtype=np.int64)
    table.push(ids, ones(ids))
    table.save(path)
    data = bytearray(path.read_bytes())
    for at in (len(data) // 2, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 4
        path.write_bytes(damaged)
        other = counting_table()
        other.push(ids[:10], ones(ids[:10]))
        with pytest.raises(InvalidInput, match=r"large\.hps"):
            other.load(path)
        assert other.stats().rows == 10
        np.testing.assert_array_equal(other.pull(ids[:12], create=False)[:, 0], [-1] * 10 + [0] * 2)


@pytest.mark.parametrize("text", [b"", b"not a snapshot", b"\0" * 4096])
def test_what_is_no_snapshot_is_refused(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "other.txt"
    path.write_bytes(text)
    with pytest.raises(InvalidInput, match=r"other\.txt"):
        some_table().load(path)


# Crashes


def files_of(directory: Path) -> dict[str, tuple[int, int, int]]:
    """What tells that a file changed: its number, time of change and size."""
    found = {}
    for path in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):  # gone since it was listed
            status = path.stat()
            found[path.name] = (status.st_ino, status.st_mtime_ns, status.st_size)
    return found


Files = dict[str, tuple[int, int, int]]


def a_work_file_appears(name: str, before: Files, now: Files) -> bool:
    return any(other != name and before.get(other) != entry for other, entry in now.items())


def a_work_file_is_half_full(name: str, before: Files, now: Files) -> bool:
    half = before[name][2] // 2
    return any(other != name and before.get(other) != entry and entry[2] >= half for other, entry in now.items())


def the_snapshot_changes(name: str, before: Files, now: Files) -> bool:
    return name not in now or now[name] != before[name]


CHILD = """
import sys
import numpy as np
from heterps.store import SparseTable

path, rows = sys.argv[1], int(sys.argv[2])
table = SparseTable(dim=8, optimizer="sgd", lr=1.0, init_scale=0.0, name="counting")
ids, grads = np.arange(rows), np.ones((rows, 8), np.float32)
for _ in range(10_000):
    table.push(ids, grads)
    table.save(path)
    print("saved", flush=True)
"""


@pytest.mark.parametrize("moment", [a_work_file_appears, a_work_file_is_half_full, the_snapshot_changes])
def test_a_crash_while_saving_leaves_the_last_good_file(tmp_path: Path, moment: Callable[..., bool]) -> None:
    rows, path = 200_000, tmp_path / "table.hps"
    ids = np.arange(rows, dtype=np.int64)
    for _ in range(KILLS):
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(rows)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "saved\n"  # from here on there is a good file
            before, deadline_s = files_of(tmp_path), time.monotonic() + LIMIT_S
            while path.name not in before:
                before = files_of(tmp_path)
            while not moment(path.name, before, files_of(tmp_path)):
                assert time.monotonic() < deadline_s, f"never saw that {moment.__name__}"
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
        table = counting_table()
        table.load(path)
        assert table.stats().rows == rows
        values = table.pull(ids, create=False)
        assert values.max() == values.min() <= -1


def test_a_save_that_fails_loses_nothing(tmp_path: Path) -> None:
    table = some_table()
    push_some(table, 1)
    table.save(tmp_path / "full")
    push_some(table, 2)
    with pytest.raises(HeterPSError, match="could not be written"):
        table.save(tmp_path / "full" / "delta", delta=True)  # a file where a directory should be
    push_some(table, 3)
    table.save(tmp_path / "delta", delta=True)
    other = some_table()
    other.load(tmp_path / "full")
    other.load(tmp_path / "delta")
    np.testing.assert_array_equal(rows_of(other), rows_of(table))


def test_saving_leaves_only_the_snapshot(tmp_path: Path) -> None:
    table = some_table()
    push_some(table, 1)
    for _ in range(3):
        table.save(tmp_path / "table.hps")
    assert names_in(tmp_path) == {"table.hps"}


# Deltas


def test_a_chain_of_deltas(tmp_path: Path) -> None:
    table = some_table(counts=True)
    push_some(table, 0, count=500)
    identities = [table.save(tmp_path / "0")]
    for step in range(1, 4):
        push_some(table, step, count=3)
        identities.append(table.save(tmp_path / str(step), delta=True))
    assert len(set(identities)) == 4
    assert (tmp_path / "1").stat().st_size < (tmp_path / "0").stat().st_size / 2
    other = some_table(counts=True)
    for step in range(4):
        other.load(tmp_path / str(step))
    np.testing.assert_array_equal(rows_of(other), rows_of(table))
    push_some(other, 9)  # the loaded table goes on with deltas of its own
    other.save(tmp_path / "4", delta=True)
    table.load(tmp_path / "4")
    np.testing.assert_array_equal(rows_of(other), rows_of(table))


def test_a_delta_is_refused_on_anything_but_its_parent(tmp_path: Path) -> None:
    table = some_table()
    push_some(table, 0)
    for step in range(3):
        table.save(tmp_path / f"{step}.hps", delta=step > 0)
        push_some(table, step + 1)
    fresh = some_table()
    with pytest.raises(InvalidInput, match=r"1\.hps"):
        fresh.load(tmp_path / "1.hps")  # on nothing
    fresh.load(tmp_path / "0.hps")
    with pytest.raises(InvalidInput, match=r"2\.hps"):
        fresh.load(tmp_path / "2.hps")  # one was left out
    fresh.load(tmp_path / "1.hps")
    with pytest.raises(InvalidInput, match=r"1\.hps"):
        fresh.load(tmp_path / "1.hps")  # twice
    fresh.load(tmp_path / "2.hps")


def test_a_row_dropped_and_made_again_between_saves(tmp_path: Path) -> None:
    table = some_table(counts=True)
    ids = np.array([1, 2, 3], np.int64)
    table.pull(ids)
    table.push(ids, np.ones((3, 3), np.float32))
    table.save(tmp_path / "full")
    assert table.shrink(min_count=5) == 3
    table.pull(ids[:1])
    table.save(tmp_path / "delta", delta=True)
    other = some_table(counts=True)
    other.load(tmp_path / "full")
    other.load(tmp_path / "delta")
    assert other.stats().rows == 1
    np.testing.assert_array_equal(rows_of(other), rows_of(table))


def test_a_delta_removes_only_what_its_parent_has(tmp_path: Path) -> None:
    """What came and went in between is nobody's business: deltas, and what is kept for them, stay small."""
    table = some_table(counts=True)
    old, passing = np.arange(100), np.arange(1000, 3000)
    table.pull(old)
    table.save(tmp_path / "whole")
    sizes, bytes_kept = [], []
    for _ in range(2):
        for _ in range(20):
            table.pull(np.repeat(passing, 2))
            table.shrink(min_count=9)
        bytes_kept.append(table.stats().bytes)
        table.save(tmp_path / "delta", delta=True)
        sizes.append((tmp_path / "delta").stat().st_size)
    assert sizes[0] - sizes[1] == 8 * len(old)  # the first tells of them, once
    assert max(bytes_kept) - min(bytes_kept) < 8 * 2 * len(old)


def test_what_is_kept_after_saves_that_fail(tmp_path: Path) -> None:
    table = some_table(counts=True)
    ids = np.arange(1000)
    table.pull(ids)
    table.save(tmp_path / "whole")
    for _ in range(5):
        table.shrink(min_count=2)
        table.pull(ids)
        with pytest.raises(HeterPSError):
            table.save(tmp_path / "whole" / "delta", delta=True)
    table.shrink(min_count=2)
    table.save(tmp_path / "delta", delta=True)
    assert (tmp_path / "delta").stat().st_size < 1000 + 8 * len(ids)
    loaded = some_table(counts=True)
    loaded.load(tmp_path / "whole")
    loaded.load(tmp_path / "delta")
    assert loaded.stats().rows == 0


def test_a_scan_leaves_nothing_behind(tmp_path: Path) -> None:
    """No delta builds on it, so nothing is kept for one; and one that builds on a save is not disturbed."""
    scanned, other = some_table(counts=True), some_table(counts=True)
    scanned.export(tmp_path / "rows.parquet")
    for table in (scanned, other):
        for _ in range(3):
            table.pull(np.arange(5000))
            table.shrink(min_count=2)
    assert scanned.stats().bytes == other.stats().bytes
    push_some(scanned, 1)
    scanned.save(tmp_path / "whole")
    push_some(scanned, 2)
    assert sum(len(ids) for ids, _, _ in scanned.scan()) == scanned.stats().rows
    push_some(scanned, 3)
    scanned.save(tmp_path / "delta", delta=True)
    other.load(tmp_path / "whole")
    other.load(tmp_path / "delta")
    np.testing.assert_array_equal(rows_of(other), rows_of(scanned))


# One moment


class Slowly:
    """A table's core whose saves go on only after pushes have begun and ended, here and there."""

    def __init__(self, core: Any) -> None:
        self._core, self._pushed, self._pushes, self._chunks = core, threading.Condition(), 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._core, name)

    def pushed(self) -> None:
        with self._pushed:
            self._pushes += 1
            self._pushed.notify_all()

    def save_some(self, rows: int) -> Any:
        self._chunks += 1
        if self._chunks % 4 == 1:
            with self._pushed:
                until = self._pushes + 2  # the first may have been under way
                assert self._pushed.wait_for(lambda: self._pushes >= until, LIMIT_S), "training stands still"
        return self._core.save_some(rows)


def pushing(table: Any, ids: Any, save: Callable[[], None]) -> None:
    """Calls `save` while another thread pushes ones to all ids; some of the pushes begin and end during it."""
    stop, failed = threading.Event(), []
    table._core = slowly = Slowly(table._core)

    def work() -> None:
        try:
            while not stop.is_set():
                table.push(ids, ones(ids))
                slowly.pushed()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        save()
    finally:
        stop.set()
        thread.join()
        table._core = slowly._core
    assert not failed, failed


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "rowwise-adagrad"])
def test_a_snapshot_taken_while_training_is_of_one_moment(tmp_path: Path, optimizer: str, threads: int) -> None:
    table = counting_table(optimizer=optimizer, threads=threads)
    ids = np.arange(150_000, dtype=np.int64)
    table.push(ids, ones(ids))
    loaded = counting_table(optimizer=optimizer)
    for moment in range(4):  # the first is full, the others build on it
        pushing(table, ids, lambda: table.save(tmp_path / str(moment), delta=moment > 0))  # noqa: B023
        loaded.load(tmp_path / str(moment))
        values = loaded.pull(ids, create=False)
        assert values.max() == values.min(), f"rows of several moments in snapshot {moment}"
        steps = loaded.stats().steps
        # After k pushes of ones: sgd is at -k, adagrad at -Σ 1/√j with h = k.
        falls = np.ones(steps) if optimizer == "sgd" else 1 / np.sqrt(np.arange(1, steps + 1))
        np.testing.assert_allclose(values[0, 0], -falls.sum(), rtol=1e-4)
        # The state is of the same moment: the next push falls by what follows k. Then back to the moment.
        state = counting_table(optimizer=optimizer)
        for earlier in range(moment + 1):
            state.load(tmp_path / str(earlier))
        state.push(ids, ones(ids))
        changed = values - state.pull(ids, create=False)
        np.testing.assert_allclose(changed, 1.0 if optimizer == "sgd" else 1 / np.sqrt(steps + 1), rtol=1e-3)


def test_new_rows_while_saving_are_not_of_the_moment(tmp_path: Path) -> None:
    table = counting_table()
    old = np.arange(100_000, dtype=np.int64)
    table.push(old, ones(old))
    stop = threading.Event()

    def grow() -> None:
        first = len(old)
        while not stop.is_set():
            new = np.arange(first, first + 5_000, dtype=np.int64)
            table.push(new, ones(new))
            first += 5_000

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        table.save(tmp_path / "full")
        table.save(tmp_path / "delta", delta=True)
    finally:
        stop.set()
        thread.join()
    loaded = counting_table()
    for name in ("full", "delta"):
        loaded.load(tmp_path / name)
        stats = loaded.stats()
        # Each push after the first brought 5,000 rows: rows and steps belong together.
        assert stats.rows == len(old) + 5_000 * (stats.steps - 1)
        assert (loaded.pull(np.arange(stats.rows, dtype=np.int64), create=False) == -1).all()


# Shards, threads, other programs


@pytest.mark.parametrize("shards", [1, 2, 5])
def test_a_snapshot_loads_into_any_number_of_shards(tmp_path: Path, shards: int) -> None:
    table = some_table(counts=True, threads=2)
    push_some(table, 1, count=300)
    table.save(tmp_path / "full")
    push_some(table, 2)
    assert table.shrink(min_count=3) > 0
    table.save(tmp_path / "delta", delta=True)
    ids = np.arange(-50, 50, dtype=np.int64)
    total = 0
    for shard in range(shards):
        part = some_table(counts=True)
        for name in ("full", "delta"):
            part.load(tmp_path / name, keep=lambda given, shard=shard: given % shards == shard)
        mine = ids[ids % shards == shard]
        np.testing.assert_array_equal(part.pull(mine, create=False), table.pull(mine, create=False))
        assert part.counts(mine).tolist() == table.counts(mine).tolist()
        assert not part.counts(ids[ids % shards != shard]).any()
        total += part.stats().rows
    assert total == table.stats().rows


@pytest.mark.parametrize(
    ("keep", "error"),
    [(lambda ids: 1 / 0, ZeroDivisionError), (lambda ids: ids, InvalidInput), (lambda ids: ids[:1] > 0, InvalidInput)],
)
def test_a_keep_that_fails_changes_nothing(tmp_path: Path, keep: Any, error: type[Exception]) -> None:
    table = some_table()
    push_some(table, 1)
    table.save(tmp_path / "snapshot")
    push_some(table, 2)
    before = rows_of(table)
    with pytest.raises(error):
        table.load(tmp_path / "snapshot", keep=keep)
    np.testing.assert_array_equal(rows_of(table), before)


@pytest.mark.parametrize(("saved", "loaded"), [(1, 2), (2, 1), (3, 2)])
def test_the_number_of_threads_is_no_part_of_a_snapshot(tmp_path: Path, saved: int, loaded: int) -> None:
    table, other = some_table(threads=saved), some_table(threads=loaded)
    for step in range(2):
        push_some(table, step)
        table.save(tmp_path / str(step), delta=step > 0)
        other.load(tmp_path / str(step))
    for each in (table, other):
        push_some(each, 7)
    np.testing.assert_array_equal(rows_of(table), rows_of(other))


@pytest.mark.parametrize("threads", [1, 2])
def test_parquet_holds_ids_and_vectors(tmp_path: Path, threads: int) -> None:
    table = some_table(threads=threads)
    push_some(table, 1, count=200)
    table.pull(np.array([-(2**63), 2**63 - 1], np.int64))
    table.export(tmp_path / "table.parquet")
    read = pq.read_table(tmp_path / "table.parquet")
    assert read.schema.names == ["id", "vector"]
    assert read.schema.field("id").type == pa.int64()
    assert read.schema.field("vector").type == pa.list_(pa.float32(), 3)
    ids = read["id"].to_numpy()
    assert len(np.unique(ids)) == len(ids) == table.stats().rows
    vectors = np.array(read["vector"].to_pylist(), np.float32)
    np.testing.assert_array_equal(vectors, table.pull(ids, create=False))


def test_parquet_of_an_empty_table(tmp_path: Path) -> None:
    some_table().export(tmp_path / "empty.parquet")
    assert pq.read_table(tmp_path / "empty.parquet").num_rows == 0
