"""2emb: a user's and an item's slots, with a table for each side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from heterps.models.batch import Batch
from heterps.models.layer import Layer
from heterps.models.losses import BCE, BCEWithLogits, Loss
from heterps.models.zoo.model import Count, SumPool, Tabular, Twin, Widths, fully_connected, random_ids


class Columns:
    """A stretch of a tensor's columns."""

    def __init__(self, start: int | None, stop: int | None) -> None:
        self.columns = slice(start, stop)

    def __call__(self, values: Tensor) -> Tensor:
        """Those columns."""
        return values[:, self.columns]


class TwoEmbeddings(Tabular):
    """A recommender: the first `user_slots` of the slots are the user's, the others the item's.

    "ids" are [B, slots · ids_per_slot], those of a slot side by side.
    """

    PAPER: ClassVar = {"dim": 32, "slots": 16, "user_slots": 12, "ids_per_slot": 5, "hidden": (1024, 512), "dense": 0}

    user_slots: Count = 13
    ids_per_slot: Count = 1
    hidden: Widths = (256, 128)
    paper: bool = Field(default=False, description="true for the layers of the paper's 2emb, 10 by default")

    @model_validator(mode="after")
    def _both_sides(self) -> TwoEmbeddings:
        if self.user_slots >= self.slots:
            raise ValueError(f"user_slots is less than slots, {self.slots}, so that the item has some too")
        return self

    def layers(self) -> list[Layer]:
        """With `paper` each ReLU by itself, and a sigmoid before the loss."""
        user_ids = self.user_slots * self.ids_per_slot
        features = ["pooled", "dense"] if self.dense else ["pooled"]
        loss: Loss = BCE() if self.paper else BCEWithLogits()
        sigmoid = Layer("sigmoid", nn.Sigmoid(), reads="logit", writes="probability", kind="activation")
        return [
            self.embedding("user_embedding", ids=Columns(None, user_ids)),
            self.embedding("item_embedding", ids=Columns(user_ids, None)),
            Layer("pooling", SumPool(self.slots), reads=["user_embedding", "item_embedding"], writes="pooled",
                  kind="pooling"),
            *fully_connected(features, self.width, *self.hidden, 1, writes="logit", split=self.paper),
            *([sigmoid] if self.paper else []),
            Layer("loss", loss, reads=["probability" if self.paper else "logit", "label"], writes="loss", kind="loss"),
        ]  # fmt: skip

    def example(self, size: int, rows: int, generator: torch.Generator) -> Batch:
        """Random ids and labels."""
        batch = super().example(size, rows, generator)
        return {**batch, "ids": random_ids(size, self.slots * self.ids_per_slot, rows, generator)}

    def twin(self, rows: int) -> Twin:
        """The same as an ordinary module."""
        return _Twin(self, rows)


class _Twin(Twin):
    def __init__(self, model: TwoEmbeddings, rows: int) -> None:
        super().__init__()
        self.paper, self.slots = model.paper, model.slots
        self.user_ids = model.user_slots * model.ids_per_slot
        self.user_embedding = nn.Embedding(rows, model.dim)
        self.item_embedding = nn.Embedding(rows, model.dim)
        self.add_linears(model.width, *model.hidden, 1)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        user, item = batch["ids"].tensor_split([self.user_ids], dim=1)
        rows = torch.cat([self.user_embedding(user), self.item_embedding(item)], dim=1)
        pooled = torch.stack([slot.sum(1) for slot in rows.chunk(self.slots, dim=1)], dim=1).flatten(1)
        values = torch.cat([pooled, batch["dense"]], dim=1) if "dense" in batch else pooled
        logit = self.run_linears(values).squeeze(1)
        loss = functional.binary_cross_entropy_with_logits(logit, batch["label"])
        return loss, torch.sigmoid(logit) if self.paper else logit
