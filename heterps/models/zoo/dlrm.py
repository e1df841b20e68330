"""DLRM (arXiv 1906.00091): numbers through a bottom network, dot products of all pairs of vectors, a top network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.models.layer import Layer
from heterps.models.losses import BCEWithLogits
from heterps.models.zoo.model import Count, FullyConnected, Tabular, Twin, Widths, fully_connected


class DotInteraction(nn.Module):
    """The bottom vector, and the dot products of all pairs among it and the rows."""

    def __init__(self, vectors: int) -> None:
        super().__init__()
        self.pairs: Tensor
        self.register_buffer("pairs", torch.tril_indices(vectors, vectors, offset=-1), persistent=False)

    def forward(self, bottom: Tensor, rows: Tensor) -> Tensor:
        """[B, dim + pairs], of [B, dim] and [B, slots, dim]."""
        vectors = torch.cat([bottom.unsqueeze(1), rows], dim=1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))
        return torch.cat([bottom, products[:, self.pairs[0], self.pairs[1]]], dim=1)


class Dlrm(Tabular):
    """Facebook's recommender; `bottom` and `top` are the hidden widths of its two networks."""

    dense: Count = 13
    bottom: Widths = (512, 256)
    top: Widths = (512, 256)

    def layers(self) -> list[Layer]:
        """The rows, kept alive past the bottom network, then their interaction and the top network."""
        bottom = (self.dense, *self.bottom, self.dim)
        interaction = DotInteraction(self.slots + 1)
        return [
            self.embedding("embedding"),
            *fully_connected("dense", *bottom, writes="bottom", prefix="bottom_", last=FullyConnected),
            Layer("interaction", interaction, reads=["bottom", "embedding"], writes="pairs", kind="interaction"),
            *fully_connected("pairs", self._pairs, *self.top, 1, writes="logit", prefix="top_"),
            Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss", kind="loss"),
        ]

    @property
    def _pairs(self) -> int:
        return self.dim + self.slots * (self.slots + 1) // 2

    def twin(self, rows: int) -> Twin:
        """The same as an ordinary module."""
        return _Twin(self, rows)


class _Twin(Twin):
    def __init__(self, model: Dlrm, rows: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows, model.dim)
        self.add_linears(model.dense, *model.bottom, model.dim, prefix="bottom_")
        self.add_linears(model._pairs, *model.top, 1, prefix="top_")

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        bottom = self.run_linears(batch["dense"], prefix="bottom_", last_relu=True)
        vectors = [bottom, *self.embedding(batch["ids"]).unbind(1)]
        dots = [(vectors[i] * vectors[j]).sum(1) for i in range(len(vectors)) for j in range(i)]
        logit = self.run_linears(torch.cat([bottom, torch.stack(dots, dim=1)], dim=1), prefix="top_").squeeze(1)
        return functional.binary_cross_entropy_with_logits(logit, batch["label"]), logit
