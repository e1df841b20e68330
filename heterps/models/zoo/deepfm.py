"""DeepFM (arXiv 1703.04247): a factorization machine and a deep network over the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.models.layer import Layer
from heterps.models.losses import BCEWithLogits
from heterps.models.zoo.model import Tabular, Twin, Widths, fully_connected, total


def linear_term(weights: Tensor) -> Tensor:
    """The sum of the weights of a sample's ids: [B, slots, 1] to [B, 1]."""
    return weights.sum(dim=1)


def second_order(rows: Tensor) -> Tensor:
    """The dot products of all pairs of rows, summed: half of (the square of the sum less the sum of squares)."""
    return 0.5 * (rows.sum(dim=1).square() - rows.square().sum(dim=1)).sum(dim=1, keepdim=True)


class DeepFm(Tabular):
    """First order (a table of dim 1, and the numbers), second order and deep network, added up."""

    hidden: Widths = (400, 400, 400)

    def layers(self) -> list[Layer]:
        """The two orders first: what they write is one float a sample, kept alive to the end."""
        terms = ["first_order", "second_order", "deep"]
        numbers = []
        if self.dense:
            numbers = [Layer("numbers", nn.Linear(self.dense, 1, bias=False), reads="dense", writes="numbers")]
            terms.append("numbers")
        return [
            self.embedding("embedding"),
            self.embedding("first_embedding", dim=1),
            Layer("first_order", linear_term, reads="first_embedding", writes="first_order"),
            *numbers,
            Layer("second_order", second_order, reads="embedding", writes="second_order", kind="interaction"),
            *fully_connected(self.features, self.width, *self.hidden, 1, writes="deep"),
            Layer("logit", total, reads=terms, writes="logit"),
            Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss", kind="loss"),
        ]

    def twin(self, rows: int) -> Twin:
        """The same as an ordinary module."""
        return _Twin(self, rows)


class _Twin(Twin):
    def __init__(self, model: DeepFm, rows: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, model.dim)
        self.first_embedding = nn.Embedding(rows, 1)
        self.numbers = nn.Linear(model.dense, 1, bias=False) if model.dense else None
        self.add_linears(model.width, *model.hidden, 1)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        rows = self.embedding(batch["ids"])
        first = self.first_embedding(batch["ids"]).sum((1, 2))
        pairs = [(one * other).sum(1) for one, other in combinations(rows.unbind(1), 2)]
        second = torch.stack(pairs).sum(0) if pairs else torch.zeros(len(rows))
        values = rows.flatten(1)
        logit = first + second
        if self.numbers is not None:
            logit = logit + self.numbers(batch["dense"]).squeeze(1)
            values = torch.cat([values, batch["dense"]], dim=1)
        logit = logit + self.run_linears(values).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logit, batch["label"]), logit
