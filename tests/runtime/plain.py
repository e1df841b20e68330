"""Any chain trained by plain PyTorch: one process, one autograd graph, tables as parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from heterps.models import Chain
from heterps.runtime.tables import bind_tables
from tests.models.tables import bind_weights

Factory = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@dataclass(frozen=True)
class Plain:
    """What plain PyTorch gives."""

    losses: list[float]
    dense: dict[str, Tensor]
    rows: dict[str, Tensor]
    """By table: of the ids 0, 1, …"""

    def assert_same(self, chain: Chain, losses: list[float], *, rtol: float = 1e-4, what: str = "") -> None:
        """The run of a chain has these losses and weights."""
        torch.testing.assert_close(
            torch.tensor(losses), torch.tensor(self.losses), rtol=rtol, atol=1e-6, msg=lambda m: f"{what} losses: {m}"
        )
        dense = chain.state_dict()
        assert dense.keys() == self.dense.keys()
        for name, weight in self.dense.items():
            _close(dense[name], weight, rtol, f"{what} {name}")
        for name, rows in self.rows.items():
            _close(rows_of(chain, name, len(rows)), rows, rtol, f"{what} {name}")


def _close(ours: Tensor, theirs: Tensor, rtol: float, what: str) -> None:
    torch.testing.assert_close(ours, theirs, rtol=rtol, atol=1e-6, msg=lambda message: f"{what}: {message}")


def rows_of(chain: Chain, table: str, count: int) -> Tensor:
    """Rows of the ids 0, 1, … as they are."""
    return torch.as_tensor(chain.tables[table].pull(torch.arange(count), create=False)).clone()


def plain(
    make: Callable[[], Chain],
    batches: Iterable[Mapping[str, Any]],
    *,
    ids: int,
    optimizer: Factory = sgd,
    clip_norm: float | None = None,
    schedule: Callable[[int], float] | None = None,
) -> Plain:
    """Trains a new chain; its ids are 0 … ids - 1, its rows follow sgd or adagrad."""
    chain = make()
    bind_tables(chain)
    weights = bind_weights(chain, {name: rows_of(chain, name, ids) for name in chain.tables})
    dense = list(chain.parameters())
    optimizers = [optimizer(dense)] if dense else []
    optimizers += [_rows_optimizer(chain, name, weight) for name, weight in weights.items()]
    schedules = [torch.optim.lr_scheduler.LambdaLR(some, schedule) for some in optimizers if schedule is not None]
    losses = []
    for batch in batches:
        loss = chain(batch)[chain.loss]
        for some in optimizers:
            some.zero_grad()
        loss.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(dense, clip_norm)
        for some in [*optimizers, *schedules]:
            some.step()
        losses.append(loss.item())
    state = {name: value.detach().clone() for name, value in chain.state_dict().items()}
    return Plain(losses, state, {name: weight.detach() for name, weight in weights.items()})


def _rows_optimizer(chain: Chain, table: str, weight: nn.Parameter) -> torch.optim.Optimizer:
    options = next(layer.options for layer in chain.embeddings if layer.table_name == table)
    if options["optimizer"] == "sgd":
        return torch.optim.SGD([weight], lr=options["lr"])
    assert options["optimizer"] == "adagrad"
    first = options.get("initial_accumulator", 0.0)
    return torch.optim.Adagrad([weight], lr=options["lr"], initial_accumulator_value=first)
