"""What plain PyTorch gives: zoo models trained by their twins, with the torch counterparts of the row optimizers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from heterps.models import Batch, Chain, zoo
from heterps.runtime.tables import bind_tables

STEPS = 50
ROWS = 60
ACCUMULATOR = 0.1
"""Of adagrad, so that the first steps of a row do not blow rounding up to the size of the learning rate."""
BASE = {"dim": 4, "init_scale": 0.5, "lr": 0.05}
TABULAR = {"slots": 5, "dense": 3}
MODELS: dict[str, dict[str, Any]] = {
    "ctrdnn": {**TABULAR, "hidden": (16, 8)},
    "matchnet": {"hidden": (8,), "vector": 6, "query_words": 3, "title_words": 5},
    "2emb": {**TABULAR, "user_slots": 2, "hidden": (8, 8)},
    "nce": {"slots": 3, "ids_per_slot": 2, "vector": 8, "candidates": 5},
    "dlrm": {**TABULAR, "bottom": (8,), "top": (8, 8)},
    "deepfm": {**TABULAR, "hidden": (8,)},
    "dcn-v2": {**TABULAR, "hidden": (8, 8)},
    "wide-and-deep": {**TABULAR, "hidden": (8,)},
}
ROW_OPTIMIZERS = {name: ("adagrad", "sgd")[number % 2] for number, name in enumerate(MODELS)}


@dataclass(frozen=True)
class Reference:
    """A run of plain PyTorch."""

    losses: list[float]
    twin: zoo.Twin


def args_of(name: str) -> dict[str, Any]:
    return {**BASE, **MODELS[name], "optimizer": ROW_OPTIMIZERS[name]}


def build(name: str) -> Chain:
    """The chain as it starts; equal for every call."""
    chain = zoo.build(name, **args_of(name))
    for layer in chain.embeddings:
        layer.options["initial_accumulator"] = ACCUMULATOR
    return chain


@cache
def batches(name: str) -> list[Batch]:
    """50 batches, most of 32 samples; some are uneven, and the last one is short."""
    sizes = [32] * STEPS
    sizes[7], sizes[20], sizes[33], sizes[-1] = 29, 2, 31, 11
    return [zoo.example(name, size, rows=ROWS, seed=number, **_shape(name)) for number, size in enumerate(sizes)]


def _shape(name: str) -> dict[str, Any]:
    return {"dim": BASE["dim"], **MODELS[name]}


def dense_optimizer(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=3e-3, eps=1e-5)


@cache
def reference(name: str) -> Reference:
    """The twin after all batches."""
    chain = build(name)
    bind_tables(chain)
    twin = zoo.twin(name, rows=ROWS, **args_of(name))
    zoo.copy_weights(chain, twin)
    dense = dense_optimizer(twin.dense_parameters())
    rows: torch.optim.Optimizer = (
        torch.optim.SGD(twin.embedding_parameters(), lr=BASE["lr"])
        if ROW_OPTIMIZERS[name] == "sgd"
        else torch.optim.Adagrad(twin.embedding_parameters(), lr=BASE["lr"], initial_accumulator_value=ACCUMULATOR)
    )
    losses = []
    for batch in batches(name):
        loss, _ = twin(batch)
        dense.zero_grad(), rows.zero_grad()
        loss.backward()
        dense.step(), rows.step()
        losses.append(loss.item())
    return Reference(losses, twin)


def assert_same(name: str, chain: Chain, losses: list[float]) -> None:
    """The loss curve and all weights, dense and rows, are those of plain PyTorch."""
    expected = reference(name)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected.losses), rtol=1e-4, atol=1e-6)
    for weight, ours, theirs in zoo.weight_pairs(chain, expected.twin):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=1e-5, msg=lambda text, weight=weight: f"{weight}: {text}"
        )
