"""ctrdnn: the rows of all slots and the numbers side by side, then fully connected layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from heterps.models.batch import Batch
from heterps.models.layer import Layer
from heterps.models.losses import BCEWithLogits
from heterps.models.zoo.model import Count, SumPool, Tabular, Twin, Widths, fully_connected, random_ids


class CtrDnn(Tabular):
    """A deep network for click-through rates. "ids" are [B, slots · ids_per_slot], those of a slot side by side."""

    PAPER: ClassVar = {"ids_per_slot": 8, "hidden": (2048, 1024, 1024, 512, 256)}

    hidden: Widths = (400, 400, 400)
    ids_per_slot: Count = 1
    paper: bool = Field(default=False, description="true for the layers of the paper's ctrdnn, 16 by default")

    def layers(self) -> list[Layer]:
        """With `paper`: pooling, concat and norm too, and each ReLU by itself."""
        widths = (self.width, *self.hidden, 1)
        features, before = self.features, []
        if self.paper or self.ids_per_slot > 1:
            before.append(Layer("pooling", SumPool(self.slots), reads="embedding", writes="pooled", kind="pooling"))
            features = ["pooled", *features[1:]]
        if self.paper:
            before += [
                Layer("concat", nn.Identity(), reads=features, writes="joined", join=True, kind="concat"),
                Layer("norm", nn.LayerNorm(self.width), reads="joined", writes="norm", kind="normalization"),
            ]
            features = ["norm"]
        return [
            self.embedding("embedding"),
            *before,
            *fully_connected(features, *widths, writes="logit", split=self.paper),
            Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss", kind="loss"),
        ]

    def example(self, size: int, rows: int, generator: torch.Generator) -> Batch:
        """Random ids, numbers and labels."""
        batch = super().example(size, rows, generator)
        return {**batch, "ids": random_ids(size, self.slots * self.ids_per_slot, rows, generator)}

    def twin(self, rows: int) -> Twin:
        """The same as an ordinary module."""
        return _Twin(self, rows)


class _Twin(Twin):
    def __init__(self, model: CtrDnn, rows: int) -> None:
        super().__init__()
        self.shape = (model.slots, model.ids_per_slot, model.dim)
        self.embedding = nn.Embedding(rows, model.dim)
        self.norm = nn.LayerNorm(model.width) if model.paper else None
        self.add_linears(model.width, *model.hidden, 1)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        rows = self.embedding(batch["ids"]).unflatten(1, self.shape[:2])
        features = [rows.sum(2).flatten(1), *([batch["dense"]] if "dense" in batch else [])]
        values = torch.cat(features, dim=1)
        if self.norm is not None:
            values = self.norm(values)
        logit = self.run_linears(values).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logit, batch["label"]), logit
