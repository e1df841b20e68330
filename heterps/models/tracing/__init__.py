"""Cuts an ordinary module into a chain: traced by `torch.fx`, `nn.Embedding`s turned into sparse tables."""

from __future__ import annotations

from heterps.models.tracing.convert import from_module

__all__ = ["from_module"]
