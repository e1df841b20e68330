"""Tables for chains of tests, as the runtime binds them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.models import Chain
from heterps.store import SparseTable


def bind(chain: Chain) -> Chain:
    """Gives every embedding its table; rows that a module brings are put there by one step of plain descent."""
    tables: dict[str, SparseTable] = {}
    for layer in chain.embeddings:
        if layer.table_name not in tables:
            tables[layer.table_name] = table_of(layer.initial_rows, name=layer.table_name, **layer.options)
        layer.table = tables[layer.table_name]
    return chain


def table_of(rows: torch.Tensor | None, *, dim: int, **options) -> SparseTable:
    if rows is None:
        return SparseTable(dim=dim, **options)
    table = SparseTable(dim=dim, optimizer="sgd", lr=1.0, init_scale=0.0, name=options["name"])
    table.push(torch.arange(len(rows)), -rows.detach().to(torch.float32))
    return table


class WeightTable:
    """A weight in the place of a table: gradients flow into it, as they would into the rows."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = nn.Parameter(weight.detach().clone())

    def pull(self, ids: Tensor, *, create: bool = True) -> Tensor:
        return self.weight[ids]

    def bag(self, ids: Tensor, offsets: Tensor, *, mode: str = "sum", create: bool = True) -> Tensor:
        return functional.embedding_bag(ids, self.weight, offsets, mode=mode)


def bind_weights(chain: Chain, weights: dict[str, Tensor]) -> dict[str, nn.Parameter]:
    """Gives the embeddings weights by the name of their table; gives these as parameters."""
    tables = {name: WeightTable(weight) for name, weight in weights.items()}
    for layer in chain.embeddings:
        layer.table = tables[layer.table_name]
    return {name: table.weight for name, table in tables.items()}
