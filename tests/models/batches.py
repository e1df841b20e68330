"""Batches for modules of tests, and small modules of one forward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from heterps.models import Bags, Batch

SIZE = 12


def batch_of(seed: int = 0, **columns: Callable[[torch.Generator], Any]) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    batch = {name: make(generator) for name, make in columns.items()}
    return {**batch, "label": torch.randint(2, (SIZE,), generator=generator).float()}


def ids(*shape: int, rows: int = 10) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randint(rows, (SIZE, *shape), generator=generator)


def numbers(*shape: int) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: torch.randn(SIZE, *shape, generator=generator)


def bags(rows: int) -> Callable[[torch.Generator], Bags]:
    def make(generator: torch.Generator) -> Bags:
        ends = torch.randint(4, (SIZE,), generator=generator).cumsum(0)
        return Bags(
            torch.randint(rows, (int(ends[-1]),), generator=generator), torch.cat([torch.zeros(1).long(), ends])
        )

    return make


def mixed(generator: torch.Generator) -> Tensor:
    """Two columns of ids and three of numbers, all floats."""
    columns = torch.randint(10, (SIZE, 2), generator=generator).float()
    return torch.cat([columns, torch.randn(SIZE, 3, generator=generator)], dim=1)


def made(forward: Callable[..., Any], **parts: nn.Module) -> nn.Module:
    """A module with an embedding `emb`, a linear layer `fc` and this forward."""

    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.fc = nn.Embedding(10, 4), nn.Linear(4, 1)
            for name, part in parts.items():
                self.add_module(name, part)

    Made.forward = forward
    return Made()
