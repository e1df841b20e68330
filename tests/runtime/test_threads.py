"""One thread for simple operations where the others would only be woken; matrix products and results as before."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
import torch
from torch import nn

from heterps.models import BCEWithLogits, Chain, Layer, SparseEmbedding
from heterps.runtime import train
from heterps.runtime.threads import SMALL, _openmp, threads_for, use_for_simple_operations
from tests.runtime.plans import make_plan


def tower(*widths: int) -> list[nn.Module]:
    return [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]


def test_what_is_small() -> None:
    assert threads_for(tower(429, 64, 32), 4096, 3) == 1
    assert threads_for([], 4096, 3) == 1
    assert threads_for(tower(429, 400), 4096, 3) == 3
    assert threads_for(tower(SMALL, 2), 16, 3) == 3  # its weights are updated, too
    assert threads_for([*tower(8, 8), nn.Conv1d(1, 1, 1)], 16, 3) == 3  # nobody knows what it does
    assert threads_for([*tower(8, 8), torch.relu], 16, 3) == 3


@pytest.mark.skipif(_openmp() is None, reason="PyTorch's OpenMP is not GNU's")
def test_simple_operations_are_set_for_one_thread_alone() -> None:
    def inside() -> tuple[int, int]:
        torch.set_num_threads(2)
        use_for_simple_operations(1)
        alone = torch.get_num_threads()
        torch.set_num_threads(2)
        return alone, torch.get_num_threads()

    before = torch.get_num_threads()
    with ThreadPoolExecutor(1) as other:
        assert other.submit(inside).result() == (1, 2)
    assert torch.get_num_threads() == before


def test_a_run_is_the_same_and_leaves_the_threads_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> tuple[list[float], list[torch.Tensor]]:
        torch.manual_seed(0)
        chain = Chain(
            SparseEmbedding("emb", reads="ids", writes="e", dim=8, optimizer="adagrad", lr=0.1),
            Layer("fc", nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Linear(4, 1)), reads="e", writes="logit"),
            Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss"),
        )
        source = torch.Generator().manual_seed(1)
        batches = [
            {"ids": torch.randint(0, 50, (64, 2), generator=source), "label": torch.rand(64, generator=source).round()}
            for _ in range(6)
        ]
        result = train(chain, batches, make_plan(chain, (), units=(2,)))
        return result.losses, list(chain.state_dict().values())

    before = torch.get_num_threads()
    losses, weights = run()
    assert torch.get_num_threads() == before
    monkeypatch.setattr("heterps.runtime.stage.threads_for", lambda layers, samples, threads: threads)
    other_losses, other_weights = run()
    assert losses == pytest.approx(other_losses, rel=1e-5)
    for one, other in zip(weights, other_weights, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
