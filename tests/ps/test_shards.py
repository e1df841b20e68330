"""Splitting, distinct ids, sums and bags, against plain loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.errors import InvalidInput
from heterps.ps.bags import check_bags, pool, spread
from heterps.ps.shards import Recent, distinct, gather, scatter_add, shard_of, split

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
    parts = split(ids, shards)
    for shard in range(shards):
        mine = parts.ids[parts.bounds[shard] : parts.bounds[shard + 1]]
        assert mine.tolist() == [number for number in ids.tolist() if plain_shard(number, shards) == shard]
    place = np.arange(len(ids)) if (found := parts.place()) is None else found
    assert parts.ids[place].tolist() == ids.tolist()
    rows = np.arange(len(ids) * 2, dtype=np.float32).reshape(-1, 2)
    np.testing.assert_array_equal(parts.arrange(rows)[place], rows)


def test_shards_are_balanced():
    counts = np.bincount(shard_of(np.arange(100_000) * 64, 7), minlength=7)
    assert abs(counts / (100_000 / 7) - 1).max() < 0.03


@settings(deadline=None)
@given(IDS)
def test_distinct_gather_and_sums(ids: np.ndarray):
    unique, inverse = distinct(ids)
    assert sorted(unique.tolist()) == sorted(set(ids.tolist()))
    assert unique[inverse].tolist() == ids.tolist()
    grads = np.arange(len(ids) * 3, dtype=np.float32).reshape(-1, 3)
    sums = scatter_add(grads, inverse, len(unique))
    for j, number in enumerate(unique.tolist()):
        np.testing.assert_array_equal(sums[j], grads[ids == number].sum(axis=0))
    out = np.empty_like(grads)
    gather(sums, inverse, out)
    np.testing.assert_array_equal(out, sums[inverse])


def test_recent_batches_are_told_by_content():
    recent = Recent()
    source = np.random.default_rng(0)
    ids = source.integers(0, 500, 2000)
    for turn in range(12):
        if turn % 3 == 0:
            ids[turn] += 1  # in place
        unique, inverse = recent.distinct(ids)
        assert unique[inverse].tolist() == ids.tolist()
    assert recent.distinct(ids)[0] is unique


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
