"""A module that was cut into a chain brings rows of its own: servers take them, and training goes on from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")

import heterps
from heterps import Chain
from heterps.ps import Client, Keys, Server
from tests.runtime.plans import make_plan

BATCHES = [
    {"ids": torch.randint(40, (16, 3), generator=generator), "label": torch.rand(16, generator=generator).round()}
    for generator in [torch.Generator().manual_seed(0)]
    for _ in range(12)
]
SETTINGS: dict[str, Any] = {"optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1), "micro_batches": 2}


class Clicks(nn.Module):
    """An embedding and a line."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(40, 4)
        self.top = nn.Linear(12, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.rows(ids).flatten(1)).squeeze(1)


def cut() -> Chain:
    """The same each time."""
    torch.manual_seed(3)
    return Chain.from_module(Clicks(), BATCHES[0], optimizer="sgd", lr=0.1)


def plain() -> tuple[dict[str, Tensor], list[float]]:
    """What plain PyTorch makes of it."""
    torch.manual_seed(3)
    model = Clicks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for batch in BATCHES:
        loss = nn.functional.binary_cross_entropy_with_logits(model(batch["ids"]), batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.state_dict(), losses


def assert_same(chain: Chain, losses: list[float]) -> None:
    state, expected = plain()
    assert losses == pytest.approx(expected, rel=1e-4)
    (table,) = chain.tables.values()
    torch.testing.assert_close(table.pull(torch.arange(40), create=False), state["rows.weight"], rtol=1e-4, atol=1e-6)


def test_on_servers():
    keys = Keys.generate()
    with (
        Server("tcp://127.0.0.1:*", keys).start() as one,
        Server("tcp://127.0.0.1:*", keys).start() as other,
        Client([one.addresses[0], other.addresses[0]], keys) as client,
    ):
        chain = cut()
        result = heterps.train(chain, BATCHES, make_plan(chain, (1,)), client=client, **SETTINGS)
        (table,) = chain.tables.values()
        rows = torch.as_tensor(table.pull(torch.arange(40), create=False))
        torch.testing.assert_close(rows, plain()[0]["rows.weight"], rtol=1e-4, atol=1e-6)
        assert result.losses == pytest.approx(plain()[1], rel=1e-4)


@pytest.mark.usefixtures("cluster")
def test_on_a_cluster(tmp_path: Path):
    """A second run takes up the rows that were trained, not those that the module brings."""
    losses: list[float] = []
    for steps in (5, 12):
        chain = cut()
        engine = {"name": "ray", "shards": 2, "replicas": [2, 1]}
        plan = make_plan(chain, (1,), units=(2, 1))
        result = heterps.train(chain, BATCHES, plan, engine=engine, checkpoints=tmp_path, steps=steps, **SETTINGS)
        losses += result.losses
    assert_same(chain, losses)
