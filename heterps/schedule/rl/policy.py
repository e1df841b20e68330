"""The policy: a recurrent network that scores every type for every layer, for any number of both.

A bidirectional recurrence runs over the layers once for each type, with the same weights; it reads the layer's features
on that type and their mean over the types. Each type is then scored from its own state, the mean state and its
features: twice, for the case that the previous layer was placed on the type (stay) and that it was not (move). So a
placement is a walk of a Markov chain over the layers, whose probabilities, samples and entropy are cheap to compute.
"""

from __future__ import annotations

import math
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from heterps.schedule.problem import Placements
from heterps.schedule.rl.features import FEATURES

Cell = Literal["lstm", "rnn"]
HIDDEN = 64
IMPOSSIBLE = -1e9
"""Log-probability of a type that cannot run a layer."""


class Policy(nn.Module):
    """Scores types for layers; `cell` is `lstm` or `rnn`."""

    def __init__(self, cell: Cell = "lstm") -> None:
        super().__init__()
        recurrent = nn.LSTM if cell == "lstm" else nn.RNN
        self.read = nn.Sequential(nn.Linear(2 * FEATURES, HIDDEN), nn.ReLU())
        self.recur = recurrent(HIDDEN, HIDDEN, batch_first=True, bidirectional=True)
        self.score = nn.Sequential(
            nn.Linear(4 * HIDDEN + 2 * FEATURES, 2 * HIDDEN), nn.ReLU(), nn.Linear(2 * HIDDEN, 2)
        )

    def forward(self, features: Tensor) -> Tensor:
        """Log-probabilities [problems, layers, previous type, type] from features [problems, types, layers, FEATURES].

        The first layer has no previous type: there every row is the same.
        """
        problems, types, layers, _ = features.shape
        runs = features[..., :1]
        mean = (features * runs).sum(1, keepdim=True) / runs.sum(1, keepdim=True)
        seen = torch.cat([features, mean.expand_as(features)], dim=-1)
        states, _ = self.recur(self.read(seen).reshape(problems * types, layers, HIDDEN))
        states = states.reshape(problems, types, layers, 2 * HIDDEN)
        others = states.mean(1, keepdim=True).expand_as(states)
        scores = self.score(torch.cat([states, others, seen], dim=-1)).masked_fill(runs < 0.5, IMPOSSIBLE)
        move, stay = scores.permute(0, 2, 1, 3).unbind(-1)  # each [problems, layers, types]
        same = torch.eye(types, dtype=torch.bool, device=features.device)
        same = same & (torch.arange(layers, device=features.device) > 0)[:, None, None]
        return torch.where(same, stay.unsqueeze(-2), move.unsqueeze(-2)).log_softmax(-1)

    def save(self, path: Path) -> None:
        """Writes the weights as an uncompressed NumPy archive."""
        np.savez(path, **{name: value.detach().numpy() for name, value in self.state_dict().items()})

    @classmethod
    def pretrained(cls, cell: Cell = "lstm") -> Policy:
        """The policy that ships with the package; `heterps pretrain` makes it."""
        policy = cls(cell)
        with resources.as_file(resources.files(__package__) / f"policy-{cell}.npz") as path, np.load(path) as weights:
            policy.load_state_dict({name: torch.from_numpy(weights[name]) for name in weights.files})
        return policy


def explore(log_p: Tensor, share: float) -> Tensor:
    """Log-probabilities mixed with a share of even odds over the types that can run the layer."""
    if share == 0:
        return log_p
    possible = log_p > IMPOSSIBLE / 2
    even = torch.where(possible, -possible.sum(-1, keepdim=True).log(), IMPOSSIBLE)
    return torch.logaddexp(log_p + math.log1p(-share), even + math.log(share))


def sample(log_p: NDArray[np.float32], count: int, rng: np.random.Generator) -> Placements:
    """Draws placements [count, layers] from log-probabilities [layers, previous, type]."""
    layers, types, _ = log_p.shape
    cumulative = np.exp(log_p.astype(np.float64)).cumsum(-1)
    cumulative /= cumulative[..., -1:]
    drawn = np.zeros((count, layers), dtype=np.int32)
    uniform = rng.random((layers, count))
    previous = np.zeros(count, dtype=np.int32)
    for layer in range(layers):
        previous = (uniform[layer][:, None] >= cumulative[layer, previous]).sum(1).clip(0, types - 1).astype(np.int32)
        drawn[:, layer] = previous
    return drawn


def most_likely(log_p: NDArray[np.float32]) -> Placements:
    """The placement of the highest probability, of shape [1, layers], by dynamic programming."""
    best = log_p[0, 0].astype(np.float64)
    back = []
    for step in log_p[1:]:
        through = best[:, None] + step
        back.append(through.argmax(0))
        best = through.max(0)
    path = [int(best.argmax())]
    for pointers in reversed(back):
        path.append(int(pointers[path[-1]]))
    return np.array([path[::-1]], dtype=np.int32)


def transitions(placements: Placements, weights: NDArray[np.float64], types: int) -> Tensor:
    """Weighted counts [layers, previous, type] of the steps of placements: their inner product with the
    log-probabilities is the weighted log-likelihood. The first layer's previous type is 0 by convention.
    """  # noqa: D205
    count, layers = placements.shape
    previous = np.hstack([np.zeros((count, 1), dtype=np.int32), placements[:, :-1]])
    cells = (np.arange(layers) * types + previous) * types + placements
    totals = np.bincount(cells.ravel(), np.repeat(weights, layers), minlength=layers * types * types)
    return torch.from_numpy(totals.reshape(layers, types, types).astype(np.float32))


def entropy(log_p: Tensor) -> Tensor:
    """Entropy a layer, in nats, of the chain with log-probabilities [layers, previous, type]."""
    p = log_p.exp()
    each = -(p * log_p.clamp(min=-50)).sum(-1)
    marginal = p[0, 0]
    total = each[0, 0]
    for layer in range(1, log_p.shape[0]):
        total = total + marginal @ each[layer]
        marginal = marginal @ p[layer]
    return total / log_p.shape[0]
