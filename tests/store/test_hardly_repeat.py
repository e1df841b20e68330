"""Ids that hardly repeat are not told apart when they are pulled: what comes of it is bit for bit the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.store import SparseTable

DIM, IDS = 8, 6000
SAME = np.full(64, -1)
EVERY = np.arange(IDS)


def drawn(source: np.random.Generator, count: int) -> np.ndarray:
    """Ids of which a few come again, the first of all several times."""
    ids = source.permutation(IDS)[:count].astype(np.int64)
    again = source.integers(0, count, count // 30)
    ids[again] = ids[source.integers(0, count, len(again))]
    ids[again[:3]] = ids[0]
    return ids


def tables(threads: int, **options: object) -> tuple[SparseTable, SparseTable]:
    return SparseTable(dim=DIM, threads=threads, **options), SparseTable(dim=DIM, **options)


def told(table: SparseTable) -> SparseTable:
    """Has it tell the ids of its next call apart: those of this one are all equal."""
    table.pull(SAME)
    return table


def assert_same(table: SparseTable, other: SparseTable) -> None:
    for one, two in zip(table.peek(EVERY), other.peek(EVERY), strict=True):
        np.testing.assert_array_equal(one, two)


@settings(max_examples=25)
@given(
    st.integers(0, 2**32), st.sampled_from([1, 2, 3, 5]), st.sampled_from(["sgd", "rowwise-adagrad", "adam"]),
    st.lists(st.sampled_from(["push", "prepare", "bag", "parts", "repeat", "shrink"]), min_size=3, max_size=12),
)  # fmt: skip
def test_whatever_follows_a_pull(seed: int, threads: int, optimizer: str, actions: list[str]) -> None:
    source = np.random.default_rng(seed)
    table, other = tables(threads, optimizer=optimizer, clip_norm=0.5)
    for action in ["push", *actions]:  # the first one learns that ids hardly repeat
        ids = drawn(source, int(source.integers(1200, 4000)))
        if action == "repeat":
            ids = np.repeat(ids[:200], 10)
        grads = source.standard_normal((len(ids), DIM)).astype(np.float32)
        if action == "prepare":
            table.prepare(ids)
        np.testing.assert_array_equal(table.pull(ids), told(other).pull(ids))
        if action == "bag":
            starts = np.arange(0, len(ids), 3)
            table.push_bag(ids, starts, grads[: len(starts)], mode="mean")
            told(other).push_bag(ids, starts, grads[: len(starts)], mode="mean")
        elif action == "parts":
            more = drawn(source, 2000)
            table.pull(more)
            assert table.push_parts([ids, more], [grads, np.ones((2000, DIM), np.float32)])
            other.push(np.concatenate([ids, more]), np.concatenate([grads, np.ones((2000, DIM), np.float32)]))
        else:
            if action == "shrink":  # rows move: what the pull found is not there any more
                for one in (table, other):
                    one.shrink()
            table.push(ids, grads)
            other.push(ids, grads)
        assert_same(table, other)


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_and_hits_are_counted_as_ever(threads: int) -> None:
    source = np.random.default_rng(0)
    table, other = tables(threads, optimizer="sgd")
    for _ in range(20):
        ids = drawn(source, 3000)
        table.pull(ids)
        told(other).pull(ids)
    for _ in range(20):
        table.pull(SAME)
    found, expected = table.stats(), other.stats()
    assert (found.rows, found.hits, found.creations) == (expected.rows, expected.hits, expected.creations)


@pytest.mark.parametrize("threads", [1, 2])
def test_changed_rows_are_in_the_next_delta(threads: int, tmp_path: Path) -> None:
    source = np.random.default_rng(1)
    table, _ = tables(threads, optimizer="adagrad")
    table.pull(drawn(source, 3000))
    table.save(tmp_path / "whole")
    ids = drawn(source, 3000)
    table.pull(ids)
    table.push(ids, np.ones((3000, DIM), np.float32))
    table.save(tmp_path / "delta", delta=True)
    loaded = SparseTable.from_config(table.config)
    loaded.load(tmp_path / "whole")
    loaded.load(tmp_path / "delta")
    assert_same(table, loaded)
