"""Losses: the mean over the samples of a batch, so that micro-batches weigh as many samples as they have."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Loss(nn.Module):
    """Base of losses: forward(scores, labels) gives one number, the mean over the samples."""


class BCEWithLogits(Loss):
    """Binary cross-entropy of logits [B] or [B, 1] with labels [B] of 0 and 1."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean over the samples."""
        return functional.binary_cross_entropy_with_logits(logits.reshape(-1), labels.reshape(-1).to(logits.dtype))


class BCE(Loss):
    """Binary cross-entropy of probabilities [B] or [B, 1] with labels [B] of 0 and 1; prefer logits where you can."""

    def forward(self, probabilities: Tensor, labels: Tensor) -> Tensor:
        """The mean over the samples."""
        given = probabilities.reshape(-1)
        return functional.binary_cross_entropy(given, labels.reshape(-1).to(given.dtype))


class Hinge(Loss):
    """Hinge loss: max(0, margin - y·score), y = 1 for label 1 and -1 for label 0."""

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The mean over the samples."""
        signs = labels.reshape(-1).to(scores.dtype) * 2 - 1
        return torch.relu(self.margin - signs * scores.reshape(-1)).mean()
