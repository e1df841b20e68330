"""Trains a model of one's own on made-up click data, in a few seconds: python examples/train.py."""

from __future__ import annotations

import sys
import tempfile

import torch
from torch import nn

import heterps
from heterps.models import scoring


def build() -> heterps.Chain:
    """26 embedded ids and 13 numbers, through two layers, to the logit of a click."""
    hidden = nn.Sequential(nn.Linear(26 * 8 + 13, 64), nn.ReLU())
    return heterps.Chain(
        heterps.SparseEmbedding("emb", reads="ids", writes="e", dim=8, optimizer="rowwise-adagrad", lr=0.05),
        heterps.Layer("fc1", hidden, reads=["e", "dense"], writes="h"),  # inputs are flattened and joined
        heterps.Layer("fc2", nn.Linear(64, 1), reads="h", writes="logit"),
        heterps.Layer("loss", heterps.BCEWithLogits(), reads=["logit", "label"], writes="loss"),
    )


def main() -> None:
    """Trains, evaluates on held-out rows, exports, and scores without the runtime."""
    torch.manual_seed(0)
    clicks = heterps.data.Synthetic(rows=60_000, ids=50_000)
    training, held_out = clicks.split(0.1)
    chain = build()
    result = heterps.train(
        chain, training, batch_size=512, epochs=2, evaluation=held_out,
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    )  # fmt: skip
    sys.stdout.write(f"{result.steps} steps, {result.throughput:,.0f} samples/s, AUC {result.auc:.4f}\n")
    sys.stdout.write(f"the best possible AUC of these rows is {clicks.best_auc():.4f}\n")

    with tempfile.TemporaryDirectory() as directory:
        scorer = scoring.load(heterps.export(chain, f"{directory}/model"), chain=build())
        with held_out.reader(batch_size=5) as reader:
            scores = scorer(next(iter(reader)).batch).sigmoid()
    sys.stdout.write(f"clicks of five rows: {', '.join(f'{score:.0%}' for score in scores.tolist())}\n")


if __name__ == "__main__":
    main()
