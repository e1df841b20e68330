"""Splitting, distinct ids, sums and bags, against plain loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps import _native
from heterps.errors import InvalidInput
from heterps.ps.bags import check_bags, pool, spread
from heterps.ps.shards import Recent, batch_of, distinct, distinct_batch, grouped, scatter_add, shard_of

IDS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 5), max_size=60).map(lambda x: np.array(x, np.int64))


def plain_shard(number: int, shards: int) -> int:
    mask = 2**64 - 1
    h = (number & mask) ^ 0x9FB21C651E98DF25
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & mask
    h = (h ^ h >> 27) * 0x94D049BB133111EB & mask
    h ^= h >> 31
    return (h >> 32) * shards >> 32


@settings(deadline=None)
@given(IDS, st.integers(1, 9))
def test_ids_are_grouped_by_shard(ids: np.ndarray, shards: int):
    all_of, each = grouped(ids, shards), distinct_batch(ids, shards)
    for batch, expected in ((all_of, ids.tolist()), (each, list(dict.fromkeys(ids.tolist())))):
        for shard in range(shards):
            mine = batch.ids[batch.bounds[shard] : batch.bounds[shard + 1]]
            assert mine.tolist() == [number for number in expected if plain_shard(number, shards) == shard]
        index = np.arange(len(ids)) if batch.index is None else batch.index
        assert batch.ids[index].tolist() == ids.tolist()
        assert shard_of(batch.ids, shards).tolist() == sorted(shard_of(batch.ids, shards).tolist())


@settings(deadline=None)
@given(IDS, st.integers(1, 4), st.sampled_from([1, 3, 8, 16, 20]), st.integers(1, 30), st.booleans())
def test_rows_are_gathered_and_gradients_summed_where_they_lie(
    ids: np.ndarray, shards: int, dim: int, chunk: int, whole: bool
):
    """The rows of a batch lie in any number of arrays, of shards and chunks of them."""
    batch = (grouped if whole else distinct_batch)(ids, shards)
    bounds = sorted({*batch.bounds, *range(0, len(batch.ids), chunk)})
    stretches = [np.full((b - a, dim), 7, np.float32) for a, b in pairwise(bounds)]
    grads = np.arange(len(ids) * dim, dtype=np.float32).reshape(-1, dim)
    batch.sum_into(grads, stretches)
    sums = np.concatenate([np.empty((0, dim), np.float32), *stretches])
    for j, number in enumerate(() if whole else batch.ids.tolist()):
        np.testing.assert_array_equal(sums[j], grads[ids == number].sum(axis=0))
    out = np.empty_like(grads)
    batch.spread(stretches, out)
    np.testing.assert_array_equal(out, grads if whole else sums[batch.index])


def test_rows_that_are_not_there_are_refused():
    batch = distinct_batch(np.array([1, 2, 1]), 1)
    rows = np.zeros((3, 4), np.float32)
    with pytest.raises(ValueError, match="no such row"):
        batch.spread([rows[:1]], rows)
    for stretches in ([rows[:1]], [rows], []):
        with pytest.raises(ValueError, match="rows for others"):
            batch.sum_into(rows, stretches)
    with pytest.raises(TypeError):
        batch.sum_into(rows, [np.zeros((2, 4))])


def test_gradients_of_others_are_refused():
    rows = np.zeros((3, 4), np.float32)
    for shards in (1, 2):
        batch = grouped(np.array([1, 2, 1]), shards)
        for grads, stretches in ((rows, [rows[:2]]), (rows[:2], [rows]), (rows[:2], [rows[:2]])):
            if shards == 2 or len(grads) != len(stretches[0]):
                with pytest.raises(ValueError, match=r"rows for others|places"):
                    batch.sum_into(grads, stretches)


@pytest.mark.parametrize(
    ("share", "make"),
    [
        (0.0, lambda source: source.permutation(50_000)),
        (0.0, lambda source: source.permutation(50_000) * 2**20),
        (0.3, lambda source: np.where(np.arange(50_000) % 26 < 8, 0, source.permutation(50_000))),  # padding
        (0.5, lambda source: np.repeat(source.permutation(25_000), 2)),
        (0.95, lambda source: source.integers(0, 2500, 50_000)),
        (0.2, lambda source: np.append(source.permutation(40_000), source.permutation(40_000)[:10_000])),
    ],
)  # fmt: skip
def test_samples_tell_how_many_ids_repeat(share, make):
    ids = make(np.random.default_rng(1)).astype(np.int64)
    assert _native.repeats(ids) == pytest.approx(share, abs=0.06)
    assert _native.repeats(ids.copy()) == _native.repeats(ids)


def test_only_ids_that_repeat_are_told_apart():
    source = np.random.default_rng(2)
    few, many = source.permutation(5000), source.integers(0, 2000, 5000)
    assert batch_of(few, 1).number is None
    assert batch_of(many, 1).number is not None
    assert batch_of(few[:1000], 1).number is not None  # of so few nothing is known
    recent = Recent()
    batch = recent.batch(few, 1)
    few[0] += 1
    assert batch.ids[0] == few[0] - 1  # what is on its way does not change with the caller's
    assert recent.batch(few, 1) is not batch


def test_shards_are_balanced():
    counts = np.bincount(shard_of(np.arange(100_000) * 64, 7), minlength=7)
    assert abs(counts / (100_000 / 7) - 1).max() < 0.03


@settings(deadline=None)
@given(IDS)
def test_distinct_ids_and_sums(ids: np.ndarray):
    unique, inverse = distinct(ids)
    assert sorted(unique.tolist()) == sorted(set(ids.tolist()))
    assert unique[inverse].tolist() == ids.tolist()
    grads = np.arange(len(ids) * 3, dtype=np.float32).reshape(-1, 3)
    sums = scatter_add(grads, inverse, len(unique))
    for j, number in enumerate(unique.tolist()):
        np.testing.assert_array_equal(sums[j], grads[ids == number].sum(axis=0))


def test_recent_batches_are_told_by_content():
    recent = Recent()
    source = np.random.default_rng(0)
    ids = source.integers(0, 500, 2000)
    for turn in range(12):
        if turn % 3 == 0:
            ids[turn] += 1  # in place
        batch = recent.batch(ids, 2)
        assert batch.ids[batch.index].tolist() == ids.tolist()
    assert recent.batch(ids, 2) is batch


@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("offsets", [[0, 2, 2, 5], [0, 0, 6], [0], [0, 6, 6], [0, 1, 2, 3, 4, 5]])
def test_bags_are_torch_embedding_bags(mode: str, offsets: list[int]):
    rows = torch.randn(6, 3, generator=torch.Generator().manual_seed(1), requires_grad=True)
    expected = torch.nn.functional.embedding_bag(torch.arange(6), rows, torch.tensor(offsets), mode=mode)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    (expected * weights).sum().backward()
    _, starts = check_bags(np.arange(6), np.array(offsets), mode)
    np.testing.assert_allclose(pool(rows.detach().numpy(), starts, mode), expected.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(spread(weights.numpy(), starts, 6, mode), rows.grad.numpy(), rtol=1e-6)


@pytest.mark.parametrize("offsets", [[1, 2], [0, 3, 2], [0, 7], []])
def test_broken_offsets_are_refused(offsets: list[int]):
    with pytest.raises(InvalidInput, match="offsets"):
        check_bags(np.arange(6), np.array(offsets, np.int64), "sum")
