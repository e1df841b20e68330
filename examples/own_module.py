"""An ordinary PyTorch module, trained as a chain and scored without the runtime: python examples/own_module.py."""

from __future__ import annotations

import sys
import tempfile

import torch
from torch import Tensor, nn

import heterps
from heterps.models import scoring

IDS = 20_000


class Clicks(nn.Module):
    """Nothing of heterps in here. The forward takes entries of a batch by their names, and gives logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(IDS, 8)
        self.hidden = nn.Sequential(nn.Linear(26 * 8 + 13, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(32, 1)

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """The logit of a click, [B]; ids are int64 [B, 26], dense is float32 [B, 13]."""
        rows = self.embedding(ids).flatten(1)
        return self.out(self.hidden(torch.cat([rows, dense], dim=1))).squeeze(1)


def main() -> None:
    """Cuts the module into layers, trains them, exports, and scores with the exported files alone."""
    torch.manual_seed(0)
    # Whole numbers from 0 on, as nn.Embedding needs them; a list of your own batches of tensors does as well.
    clicks = heterps.data.Synthetic(rows=30_000, ids=IDS, id_space="dense")
    training, held_out = clicks.split(0.1)
    with held_out.reader(batch_size=5, shuffle=False) as reader:
        example = next(iter(reader)).batch

    # The module is traced once with the example. nn.Embedding becomes a table of the store, with its own optimizer.
    chain = heterps.Chain.from_module(Clicks(), example, optimizer="rowwise-adagrad", lr=0.05)
    sys.stdout.write(f"layers: {', '.join(layer.name for layer in chain.layers)}\n")
    result = heterps.train(chain, training, batch_size=256, epochs=2, evaluation=held_out, lr=0.001)
    sys.stdout.write(f"{result.steps} steps, held-out AUC {result.auc:.3f} ({clicks.best_auc():.3f} at best)\n")

    with tempfile.TemporaryDirectory() as directory:
        files = heterps.export(chain, f"{directory}/model")
        fresh = heterps.Chain.from_module(Clicks(), example)  # the code again; weights and rows come from the files
        scores = scoring.load(files, chain=fresh)(example).sigmoid()
    sys.stdout.write(f"clicks of five rows: {', '.join(f'{score:.0%}' for score in scores.tolist())}\n")


if __name__ == "__main__":
    main()
