"""A push in parts is bit for bit one push of all of them, whatever is known of the pulls before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.store import SparseTable

OPTIMIZERS = ["sgd", "momentum", "adagrad", "rowwise-adagrad", "adam", "ftrl"]


def drawn(seed: int, parts: int, *, most: int = 3000, ids: int = 4000) -> list[tuple[np.ndarray, np.ndarray]]:
    """Parts, many of whose ids occur in others; every second one, from the first on, has some of its own again."""
    source = np.random.default_rng(seed)
    found = [source.permutation(ids)[: source.integers(1, most)].astype(np.int64) for _ in range(parts)]
    for own in found[::2]:
        own[source.integers(0, len(own), len(own) // 5)] = own[0]
    return [(own, source.standard_normal((len(own), 8)).astype(np.float32)) for own in found]


def pushed(table: SparseTable, parts: list[tuple[np.ndarray, np.ndarray]]) -> bool:
    return table.push_parts([ids for ids, _ in parts], [grads for _, grads in parts])


@settings(max_examples=20)
@given(st.integers(0, 2**32), st.integers(2, 5), st.sampled_from(OPTIMIZERS), st.sampled_from([1, 2, 3]))
def test_parts_are_one_push(seed: int, count: int, optimizer: str, threads: int) -> None:
    table, other = (SparseTable(dim=8, optimizer=optimizer, weight_decay=1e-3, threads=n) for n in (threads, 1))
    for step in range(3):
        parts = drawn(seed + step, count)
        for ids, _ in parts:
            np.testing.assert_array_equal(table.pull(ids), other.pull(ids))
        assert pushed(table, parts)
        other.push(np.concatenate([ids for ids, _ in parts]), np.concatenate([grads for _, grads in parts]))
    every = np.arange(4000)
    for one, two in zip(table.peek(every), other.peek(every), strict=True):
        np.testing.assert_array_equal(one, two)
    assert table.stats().steps == 3


def test_what_is_not_known_is_not_pushed() -> None:
    table = SparseTable(dim=8, optimizer="sgd", lr=1.0)
    parts = drawn(0, 2)
    before = table.pull(parts[0][0])
    assert not pushed(table, parts)  # the second was not pulled
    table.pull(parts[1][0][::-1])
    assert not pushed(table, parts)  # but in another order
    np.testing.assert_array_equal(table.pull(parts[0][0]), before)
    table.pull(parts[1][0])
    assert pushed(table, parts)  # the first is still remembered
    assert not pushed(table, parts[1:] + parts[1:])  # and used up now


def test_the_same_ids_of_two_clients() -> None:
    table = SparseTable(dim=8, optimizer="sgd", lr=1.0, init_scale=0.0)
    ids = np.arange(2000)
    table.pull(ids)
    table.pull(ids)
    assert pushed(table, [(ids, np.ones((2000, 8), np.float32))] * 2)
    np.testing.assert_array_equal(table.pull(ids), np.full((2000, 8), -2.0, np.float32))


@pytest.mark.parametrize("threads", [1, 2])
def test_rows_of_parts_are_saved_as_changed(tmp_path: Path, threads: int) -> None:
    table = SparseTable(dim=8, optimizer="adagrad", threads=threads)
    table.pull(np.arange(4000))
    table.save(tmp_path / "whole")
    parts = drawn(1, 3)
    for ids, _ in parts:
        table.pull(ids)
    assert pushed(table, parts)
    table.save(tmp_path / "delta", delta=True)
    loaded = SparseTable.from_config(table.config)
    loaded.load(tmp_path / "whole")
    loaded.load(tmp_path / "delta")
    every = np.arange(4000)
    np.testing.assert_array_equal(loaded.pull(every), table.pull(every))


def test_rows_that_have_moved_are_looked_for_again() -> None:
    table = SparseTable(dim=8, optimizer="sgd", lr=1.0)
    parts = drawn(2, 2)
    for ids, _ in parts:
        table.pull(ids)
    table.shrink()
    assert not pushed(table, parts)
