"""Calls for those who keep rows elsewhere for a while: looking ahead, distinct rows, rows and state as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from heterps.errors import InvalidInput
from heterps.store import SparseTable

DIM = 4
BATCHES = st.lists(arrays(np.int64, st.integers(0, 60), elements=st.integers(-5, 30)), min_size=1, max_size=6)


def table(**options: object) -> SparseTable:
    return SparseTable(dim=DIM, optimizer="adagrad", lr=0.1, seed=3, **options)


def rows_of(some: SparseTable) -> np.ndarray:
    return some.pull(np.arange(-5, 31), create=False)


@settings(max_examples=60, deadline=None)
@given(batches=BATCHES, threads=st.integers(1, 3), ahead=st.integers(0, 3), seed=st.integers(0, 9))
def test_looking_ahead_changes_nothing(batches: list[np.ndarray], threads: int, ahead: int, seed: int):
    """Also when pushes come between, and when more is looked up than is ever pulled."""
    rng = np.random.default_rng(seed)
    one, other = table(threads=threads), table()
    for number, ids in enumerate(batches):
        for later in batches[number : number + ahead]:
            one.prepare(later)
        rows = one.pull(ids)
        np.testing.assert_array_equal(rows, other.pull(ids))
        grads = rng.standard_normal(rows.shape).astype(np.float32)
        one.push(ids, grads)
        other.push(ids, grads)
    np.testing.assert_array_equal(rows_of(one), rows_of(other))


@settings(max_examples=60, deadline=None)
@given(batches=BATCHES, threads=st.integers(1, 3), held=st.integers(0, 3), seed=st.integers(0, 9))
def test_distinct_rows_are_the_rows(batches: list[np.ndarray], threads: int, held: int, seed: int):
    """With up to `held` batches between a pull and its push, as pipelines have them."""
    rng = np.random.default_rng(seed)
    one, other = table(threads=threads), table()
    waiting = []
    for ids in batches:
        number, rows = np.empty(len(ids), np.int32), np.empty((len(ids), DIM), np.float32)
        distinct, ticket = one.pull_distinct(ids, number=number, rows=rows)
        assert distinct == len(np.unique(ids))
        np.testing.assert_array_equal(rows[:distinct][number], other.pull(ids))
        waiting.append((ids, rng.integers(-3, 4, (len(ids), DIM)).astype(np.float32), number, distinct, ticket))
        if len(waiting) > held:
            push(one, other, *waiting.pop(0))
    for rest in waiting:
        push(one, other, *rest)
    np.testing.assert_array_equal(rows_of(one), rows_of(other))


def push(one: SparseTable, other: SparseTable, ids, grads, number, distinct, ticket):
    sums = np.zeros((distinct, DIM), np.float32)
    np.add.at(sums, number, grads)
    one.push_distinct(ids, sums, ticket=ticket)
    other.push(ids, grads)


def test_a_distinct_push_needs_a_gradient_for_each_row():
    some, ids = table(), np.array([1, 2, 2])
    number, rows = np.empty(3, np.int32), np.empty((3, DIM), np.float32)
    _, ticket = some.pull_distinct(ids, number=number, rows=rows)
    with pytest.raises(ValueError, match="as many gradients"):
        some.push_distinct(ids, np.ones((3, DIM), np.float32), ticket=ticket)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_refused_distinct_push_makes_no_rows(threads: int):
    some = table(threads=threads)
    with pytest.raises(ValueError, match="as many gradients"):
        some.push_distinct(np.arange(100), np.ones((99, DIM), np.float32), ticket=7)
    assert some.stats().rows == 0
    some.push_distinct(np.arange(100), np.ones((100, DIM), np.float32), ticket=7)
    assert some.stats().rows == 100


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("life", [{}, {"admit_after": 2}, {"expire_steps": 3}], ids=str)
def test_distinct_pulls_count_and_make_rows_as_plain_ones(threads: int, life: dict[str, int]):
    """While the index grows, with ids that are new, known and, where rows have a life, not admitted or expired."""
    rng = np.random.default_rng(threads)
    one, other = table(threads=threads, **life), table(**life)
    for step in range(12):
        ids = rng.integers(0, 2000 * (step + 1), 6000)
        number, rows = np.empty(len(ids), np.int32), np.empty((len(ids), DIM), np.float32)
        distinct, ticket = one.pull_distinct(ids, number=number, rows=rows)
        np.testing.assert_array_equal(rows[:distinct][number], other.pull(ids))
        push(one, other, ids, rng.integers(-3, 4, (len(ids), DIM)).astype(np.float32), number, distinct, ticket)
        found, expected = one.stats(), other.stats()
        assert (found.rows, found.hits, found.creations) == (expected.rows, expected.hits, expected.creations)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_empty_push_is_not_that_of_distinct_rows(threads: int):
    some, ids = table(threads=threads), np.arange(1000)
    number, rows = np.empty(1000, np.int32), np.empty((1000, DIM), np.float32)
    distinct, ticket = some.pull_distinct(ids, number=number, rows=rows)
    some.push(np.empty(0, np.int64), np.empty((0, DIM), np.float32))
    assert some.pull(np.empty(0, np.int64), out=np.empty((0, DIM), np.float32)).shape == (0, DIM)
    np.testing.assert_array_equal(some.pull(ids, create=False), rows[number])
    some.push_distinct(ids, np.zeros((distinct, DIM), np.float32), ticket=ticket)
    np.testing.assert_array_equal(some.pull(ids, create=False), rows[number])


@pytest.mark.parametrize("threads", [1, 3])
def test_a_delta_holds_what_distinct_pushes_changed(threads: int, tmp_path: Path):
    """With clipping, too, where every thread needs memory of its own."""
    one, other = table(threads=threads, clip_norm=0.5), table(clip_norm=0.5)
    rng = np.random.default_rng(threads)
    for step in range(5):
        ids = rng.integers(-2000, 2000, 3000)
        number, rows = np.empty(len(ids), np.int32), np.empty((len(ids), DIM), np.float32)
        distinct, ticket = one.pull_distinct(ids, number=number, rows=rows)
        other.pull(ids)
        grads = rng.integers(-3, 4, (len(ids), DIM)).astype(np.float32)
        push(one, other, ids, grads, number, distinct, ticket)
        one.save(tmp_path / str(step), delta=step > 0)
    loaded, all_ids = table(clip_norm=0.5), np.arange(-2000, 2000)
    for step in range(5):
        loaded.load(tmp_path / str(step))
    np.testing.assert_array_equal(loaded.pull(all_ids, create=False), other.pull(all_ids, create=False))


def test_rows_and_state_move_as_they_are():
    """What is read from one table and set in another goes on as if it had always been there."""
    one, other, ids = table(), table(), np.arange(20)
    one.push(ids, np.ones((20, DIM), np.float32))
    other.put(ids, *one.peek(ids))
    for some in (one, other):
        some.push(ids[:7], np.full((7, DIM), 0.5, np.float32))
    np.testing.assert_array_equal(rows_of(one), rows_of(other))


def test_peeking_makes_nothing():
    some = table(initial_accumulator=0.25)
    weights, state = some.peek(np.array([4, -4]))
    np.testing.assert_array_equal(weights, some.pull(np.array([4, -4]), create=False))
    assert (state == 0.25).all()
    assert some.stats().rows == 0


def test_rows_set_without_state_keep_theirs():
    some, ids = table(), np.array([1])
    some.push(ids, np.ones((1, DIM), np.float32))
    before = some.peek(ids)[1]
    some.put(ids, np.zeros((1, DIM), np.float32))
    np.testing.assert_array_equal(some.peek(ids)[1], before)
    assert (some.pull(ids) == 0).all()
    with pytest.raises(InvalidInput, match="shape"):
        some.put(ids, np.zeros((2, DIM), np.float32))


def test_rows_that_were_set_are_in_the_next_delta(tmp_path):
    some, copy = table(), table()
    some.push(np.arange(10), np.ones((10, DIM), np.float32))
    some.save(tmp_path / "full.hps")
    some.put(np.array([3, 100]), np.full((2, DIM), 7.0, np.float32))
    some.save(tmp_path / "delta.hps", delta=True)
    copy.load(tmp_path / "full.hps")
    copy.load(tmp_path / "delta.hps")
    assert (copy.pull(np.array([3, 100]), create=False) == 7).all()


def test_a_scan_gives_every_row_once_while_others_change():
    some, ids = table(), np.arange(40_000)
    some.push(ids, np.ones((40_000, DIM), np.float32))
    expected = some.pull(ids)
    found = {}
    for some_ids, weights, state in some.scan():
        found.update(zip(some_ids.tolist(), weights, strict=True))
        assert (state == 1).all()
        some.push(ids, np.ones((40_000, DIM), np.float32))
    assert sorted(found) == ids.tolist()
    np.testing.assert_array_equal(np.stack([found[number] for number in ids.tolist()]), expected)


def test_rows_that_are_set_count_as_seen():
    """Or else a table with expiry would drop them at the next pull."""
    some, ids = table(expire_steps=3), np.arange(5)
    for step in range(6):
        some.pull(np.array([100 + step]))
        some.push(np.array([100 + step]), np.ones((1, DIM), np.float32))
    weights, state = some.peek(ids)
    some.put(ids, np.full_like(weights, 5.0), state)
    np.testing.assert_array_equal(some.pull(ids), np.full_like(weights, 5.0))
