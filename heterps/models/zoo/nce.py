"""nce: a history of ids tells the next id from sampled ones (noise-contrastive estimation)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from heterps.models.batch import Batch
from heterps.models.layer import Layer
from heterps.models.losses import Loss
from heterps.models.zoo.model import Count, Model, SumPool, Twin, random_ids


def match(vector: Tensor, candidates: Tensor) -> Tensor:
    """How well a vector [B, n] matches each candidate [B, candidates, n]: [B, candidates]."""
    return torch.bmm(candidates, vector.unsqueeze(2)).squeeze(2)


class SampledLogistic(Loss):
    """Cross-entropy of telling true candidates from sampled ones: the sum over a sample's candidates."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over the samples."""
        given = labels.to(logits.dtype)
        return functional.binary_cross_entropy_with_logits(logits, given, reduction="sum") / len(logits)


class MatchAndLoss(Loss):
    """`match` and `SampledLogistic` in one, as the paper's last layer."""

    def forward(self, vector: Tensor, candidates: Tensor, labels: Tensor) -> Tensor:
        """The mean over the samples."""
        loss: Tensor = SampledLogistic()(match(vector, candidates), labels)
        return loss


class Nce(Model):
    """Retrieval, by a history and a table of candidates.

    Reads "ids" [B, slots · ids_per_slot], the history; "candidates" [B, candidates], the next id and sampled ones; and
    "label" [B, candidates], 1 for the next id.
    """

    PAPER: ClassVar = {"dim": 64, "slots": 10, "ids_per_slot": 5, "vector": 128, "candidates": 21}

    slots: Count = 10
    ids_per_slot: Count = 1
    vector: Count = 64
    candidates: Count = 21
    paper: bool = Field(default=False, description="true for the 5 layers of the paper's nce")

    def layers(self) -> list[Layer]:
        """The layer "nce" looks up the candidates; with `paper` the loss matches them too, and there is no score."""
        last = [
            Layer("match", match, reads=["vector", "nce"], writes="logits", kind="similarity"),
            Layer("loss", SampledLogistic(), reads=["logits", "label"], writes="loss", kind="loss"),
        ]
        if self.paper:
            last = [Layer("loss", MatchAndLoss(), reads=["vector", "nce", "label"], writes="loss", kind="loss")]
        return [
            self.embedding("embedding"),
            Layer("pooling", SumPool(self.slots), reads="embedding", writes="pooled", kind="pooling"),
            Layer("fc", nn.Linear(self.slots * self.dim, self.vector), reads="pooled", writes="vector", kind="fc"),
            self.embedding("nce", reads="candidates", dim=self.vector),
            *last,
        ]

    def example(self, size: int, rows: int, generator: torch.Generator) -> Batch:
        """Random ids; the first candidate is the true one."""
        label = torch.zeros(size, self.candidates)
        label[:, 0] = 1
        return {
            "ids": random_ids(size, self.slots * self.ids_per_slot, rows, generator),
            "candidates": random_ids(size, self.candidates, rows, generator),
            "label": label,
        }

    def twin(self, rows: int) -> Twin:
        """The same as an ordinary module."""
        return _Twin(self, rows)


class _Twin(Twin):
    def __init__(self, model: Nce, rows: int) -> None:
        super().__init__()
        self.shape = (model.slots, model.ids_per_slot)
        self.embedding = nn.Embedding(rows, model.dim)
        self.nce = nn.Embedding(rows, model.vector)
        self.fc = nn.Linear(model.slots * model.dim, model.vector)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        rows = self.embedding(batch["ids"]).unflatten(1, self.shape)
        vector = self.fc(rows.sum(2).flatten(1))
        logits = (self.nce(batch["candidates"]) * vector[:, None]).sum(2)
        signs = batch["label"] * 2 - 1
        return -functional.logsigmoid(signs * logits).sum(1).mean(), logits
