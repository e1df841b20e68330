"""Weights of a chain and of its twin, side by side."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from heterps.errors import InvalidInput
from heterps.models.chain import Chain
from heterps.models.zoo.model import Twin


def weight_pairs(chain: Chain, twin: Twin) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Each weight's name in the twin, its value in the chain and its value in the twin.

    Of a table these are the rows of the ids that the twin has; ids without a row read as their first value.
    """
    weights = dict(twin.named_parameters())
    for name, weight in chain.named_parameters():
        plain = name.replace(".module.", ".", 1)
        yield plain, weight.detach(), weights.pop(plain).detach()
    for layer in chain.embeddings:
        if layer.table is None:
            raise InvalidInput(f"embedding {layer.name!r} has no table yet: train the chain, or bind its tables")
        rows = weights.pop(f"{layer.name}.weight").detach()
        yield f"{layer.name}.weight", torch.as_tensor(layer.table.pull(torch.arange(len(rows)), create=False)), rows
    assert not weights, f"the twin has weights the chain has not: {', '.join(weights)}"


def copy_weights(chain: Chain, twin: Twin) -> None:
    """Gives the twin the chain's dense weights and rows; the chain's tables must be bound."""
    with torch.no_grad():
        for _, ours, theirs in weight_pairs(chain, twin):
            theirs.copy_(ours)


def compare_weights(chain: Chain, twin: Twin) -> dict[str, float]:
    """By weight, the largest difference between chain and twin, as a share of the twin's largest value."""
    return {
        name: float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=torch.finfo(theirs.dtype).tiny))
        for name, ours, theirs in weight_pairs(chain, twin)
    }
