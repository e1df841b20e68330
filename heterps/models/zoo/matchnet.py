"""matchnet: a query and a title, each through a tower of its own; how near they are is the cosine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from heterps.models.batch import Batch
from heterps.models.layer import Layer
from heterps.models.losses import Hinge
from heterps.models.zoo.model import Count, Model, SumPool, Twin, Widths, fully_connected, random_ids, random_labels


class MatchNet(Model):
    """Relevance of a title to a query: reads "query" [B, query_words], "title" [B, title_words] and "label" [B]."""

    PAPER: ClassVar = {"dim": 64, "query_words": 12, "title_words": 24, "hidden": (1024, 512), "vector": 128}

    dim: Count = 32
    query_words: Count = 12
    title_words: Count = 24
    hidden: Widths = (256,)
    vector: Count = 128
    margin: float = Field(default=1.0, gt=0, description="of the hinge loss, above 0")
    paper: bool = Field(default=False, description="true for the layers of the paper's matchnet, 16 by default")

    def layers(self) -> list[Layer]:
        """One tower after the other; with `paper` each ReLU by itself."""
        return [
            *self._tower("query"),
            *self._tower("title"),
            Layer("cosine", nn.CosineSimilarity(), reads=["query_vector", "title_vector"], writes="cosine",
                  kind="similarity"),
            Layer("loss", Hinge(self.margin), reads=["cosine", "label"], writes="loss", kind="loss"),
        ]  # fmt: skip

    def _tower(self, side: str) -> list[Layer]:
        pooled, widths = f"{side}_pooled", (self.dim, *self.hidden, self.vector)
        return [
            self.embedding(f"{side}_embedding", reads=side),
            Layer(f"{side}_pooling", SumPool(1), reads=f"{side}_embedding", writes=pooled, kind="pooling"),
            *fully_connected(pooled, *widths, writes=f"{side}_vector", prefix=f"{side}_", split=self.paper),
        ]

    def example(self, size: int, rows: int, generator: torch.Generator) -> Batch:
        """Random words and labels."""
        return {
            "query": random_ids(size, self.query_words, rows, generator),
            "title": random_ids(size, self.title_words, rows, generator),
            "label": random_labels(size, generator),
        }

    def twin(self, rows: int) -> Twin:
        """The same as an ordinary module."""
        return _Twin(self, rows)


class _Twin(Twin):
    def __init__(self, model: MatchNet, rows: int) -> None:
        super().__init__()
        self.margin = model.margin
        self.query_embedding = nn.Embedding(rows, model.dim)
        self.title_embedding = nn.Embedding(rows, model.dim)
        for side in ("query_", "title_"):
            self.add_linears(model.dim, *model.hidden, model.vector, prefix=side)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        query = self.run_linears(self.query_embedding(batch["query"]).sum(1), prefix="query_")
        title = self.run_linears(self.title_embedding(batch["title"]).sum(1), prefix="title_")
        cosine = (query * title).sum(1) / (query.norm(dim=1) * title.norm(dim=1))
        sign = torch.where(batch["label"] == 1, 1.0, -1.0)
        return (self.margin - sign * cosine).clamp(min=0).mean(), cosine
