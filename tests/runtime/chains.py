"""Small chains, and batches for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from heterps.models import Bags, Batch, BCEWithLogits, Chain, Layer, SparseEmbedding

IDS = 40
SLOTS, DENSE, DIM = 3, 2, 4


def embedding(name: str, **options: Any) -> SparseEmbedding:
    """Writes a tensor of its own name."""
    given = {"reads": "ids", "dim": DIM, "optimizer": "adagrad", "lr": 0.1, "init_scale": 0.5,
             "initial_accumulator": 0.1, **options}  # fmt: skip
    return SparseEmbedding(name, writes=name, **given)


def fc(name: str, reads: str | list[str], width_in: int, width_out: int, *, relu: bool = True) -> Layer:
    """Writes a tensor of its own name."""
    linear = nn.Linear(width_in, width_out)
    return Layer(name, nn.Sequential(linear, nn.ReLU()) if relu else linear, reads=reads, writes=name)


def loss(reads: str = "logit") -> Layer:
    return Layer("loss", BCEWithLogits(), reads=[reads, "label"], writes="loss")


def seeded(make: Callable[[], Chain]) -> Callable[[], Chain]:
    """Makes the same chain at every call."""

    def again() -> Chain:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            return make()

    return again


@seeded
def small() -> Chain:
    """Five layers: embedding, three fully connected, loss."""
    return Chain(
        embedding("rows"),
        fc("fc1", ["rows", "dense"], SLOTS * DIM + DENSE, 16),
        fc("fc2", "fc1", 16, 8),
        fc("logit", "fc2", 8, 1, relu=False),
        loss(),
    )


def random_batches(count: int, *, size: int = 16, seed: int = 0, ids: int = IDS) -> list[Batch]:
    """With "ids" [B, 3], "more" [B, 2], "user" [B], "tags" and "words" (bags, some empty), "dense" and "label"."""
    generator = torch.Generator().manual_seed(seed)
    return [_batch(size - (number % 3 == 2), ids, generator) for number in range(count)]


def _batch(size: int, ids: int, generator: torch.Generator) -> Batch:
    def draw(*shape: int) -> Tensor:
        return torch.randint(ids, shape, generator=generator)

    def bags(slots: int) -> Bags:
        sizes = torch.randint(0, 5, (size * slots,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return Bags(draw(int(offsets[-1])), offsets, slots)

    dense = torch.randn(size, DENSE, generator=generator)
    ids_ = draw(size, SLOTS)
    label = ((ids_ % 7).sum(1) + dense.sum(1) > 9).float()
    return {"ids": ids_, "more": draw(size, 2), "user": draw(size), "tags": bags(2), "words": bags(1), "dense": dense,
            "label": label}  # fmt: skip
