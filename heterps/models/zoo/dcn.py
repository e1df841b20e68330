"""DCN-V2 (arXiv 2008.13535): layers that cross the features with themselves, and a deep network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from heterps.models.layer import Layer
from heterps.models.losses import BCEWithLogits
from heterps.models.zoo.model import Count, CountOrNone, FullyConnected, Tabular, Twin, Widths, fully_connected


class Cross(nn.Module):
    """One crossing: x0 · (W x + b) + x, elementwise; W of a low rank is up · down."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False) if rank else None
        self.up = nn.Linear(rank or width, width)

    def forward(self, first: Tensor, values: Tensor | None = None) -> Tensor:
        """Crosses `values` (the first ones themselves where there are no others) with the first."""
        values = first if values is None else values
        crossed: Tensor = self.up(values if self.down is None else self.down(values))
        return torch.addcmul(values, first, crossed)


class DcnV2(Tabular):
    """Google's deep and cross network: `crosses` layers, then the deep network, or both side by side (parallel)."""

    crosses: Count = 3
    rank: CountOrNone = Field(default=0, description="rank of the crosses' weights, a whole number; 0 for full")
    hidden: Widths = Field(default=(400, 400), min_length=1)
    structure: Literal["stacked", "parallel"] = "stacked"

    def layers(self) -> list[Layer]:
        """The features stay alive through all crosses."""
        crosses = [
            Layer(f"cross{number}", Cross(self.width, self.rank), kind="cross",
                  reads=["features"] if number == 1 else ["features", f"cross{number - 1}"], writes=f"cross{number}")
            for number in range(1, self.crosses + 1)
        ]  # fmt: skip
        crossed, parallel = f"cross{self.crosses}", self.structure == "parallel"
        deep = fully_connected(
            "features" if parallel else crossed, self.width, *self.hidden, writes="deep", last=FullyConnected
        )
        joined = self.hidden[-1] + (self.width if parallel else 0)
        return [
            self.embedding("embedding"),
            Layer("concat", nn.Identity(), reads=self.features, writes="features", join=True, kind="concat"),
            *crosses,
            *deep,
            Layer("logit", nn.Linear(joined, 1), reads=[crossed, "deep"] if parallel else "deep", writes="logit",
                  kind="fc"),
            Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss", kind="loss"),
        ]  # fmt: skip

    def twin(self, rows: int) -> Twin:
        """The same as an ordinary module."""
        return _Twin(self, rows)


class _Twin(Twin):
    def __init__(self, model: DcnV2, rows: int) -> None:
        super().__init__()
        self.crosses, self.parallel = model.crosses, model.structure == "parallel"
        self.embedding = nn.Embedding(rows, model.dim)
        for number in range(1, model.crosses + 1):
            cross = {"up": nn.Linear(model.rank or model.width, model.width)}
            if model.rank:
                cross["down"] = nn.Linear(model.width, model.rank, bias=False)
            self.add_module(f"cross{number}", nn.ModuleDict(cross))
        self.add_linears(model.width, *model.hidden)
        self.logit = nn.Linear(model.hidden[-1] + (model.width if self.parallel else 0), 1)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        values = [self.embedding(batch["ids"]).flatten(1), *([batch["dense"]] if "dense" in batch else [])]
        first = crossed = torch.cat(values, dim=1)
        for number in range(1, self.crosses + 1):
            cross: Any = self.get_submodule(f"cross{number}")
            weight = cross["up"].weight @ cross["down"].weight if "down" in cross else cross["up"].weight
            crossed = first * (crossed @ weight.T + cross["up"].bias) + crossed
        deep = self.run_linears(first if self.parallel else crossed, last_relu=True)
        logit = self.logit(torch.cat([crossed, deep], dim=1) if self.parallel else deep).squeeze(1)
        return functional.binary_cross_entropy_with_logits(logit, batch["label"]), logit
