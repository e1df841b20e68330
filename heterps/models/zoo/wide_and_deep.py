"""Wide & Deep (arXiv 1606.07792): a linear model over ids beside a deep network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.models.layer import Layer
from heterps.models.losses import BCEWithLogits
from heterps.models.zoo.deepfm import linear_term
from heterps.models.zoo.model import Tabular, Twin, Widths, fully_connected, total


class WideAndDeep(Tabular):
    """The wide part is a table of dim 1, the deep part rows, numbers and fully connected layers."""

    hidden: Widths = (400, 400, 400)

    def layers(self) -> list[Layer]:
        """The wide part first: it is one float a sample, kept alive to the end."""
        return [
            self.embedding("wide_embedding", dim=1),
            self.embedding("embedding"),
            Layer("wide", linear_term, reads="wide_embedding", writes="wide"),
            *fully_connected(self.features, self.width, *self.hidden, 1, writes="deep"),
            Layer("logit", total, reads=["wide", "deep"], writes="logit"),
            Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss", kind="loss"),
        ]

    def twin(self, rows: int) -> Twin:
        """The same as an ordinary module."""
        return _Twin(self, rows)


class _Twin(Twin):
    def __init__(self, model: WideAndDeep, rows: int) -> None:
        super().__init__()
        self.wide_embedding = nn.Embedding(rows, 1)
        self.embedding = nn.Embedding(rows, model.dim)
        self.add_linears(model.width, *model.hidden, 1)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        values = [self.embedding(batch["ids"]).flatten(1), *([batch["dense"]] if "dense" in batch else [])]
        logit = self.run_linears(torch.cat(values, dim=1)).squeeze(1) + self.wide_embedding(batch["ids"]).sum((1, 2))
        return functional.binary_cross_entropy_with_logits(logit, batch["label"]), logit
