"""A model with rows that count samples, and a clock that a test holds: what driven runs train.

The gradient of a counting row is -1 for each sample with its id, and its learning rate 1: after a run its value is how
often the sample was used, to the bit, whatever else the model learns.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from heterps.models import Batch, BCEWithLogits, Chain, Layer
from tests.runtime.chains import DIM, IDS, SLOTS, embedding, fc, seeded

BATCH = 32
"""A power of two, as micro-batches are: sums of their shares are exact."""
LAYERS = 5
COUNTER = "seen"


class Counted(nn.Module):
    """The loss, and nothing more in value; each sample's counter gets a gradient of -1 a sample."""

    def __init__(self, gate: Path | None) -> None:
        super().__init__()
        self.loss, self.gate = BCEWithLogits(), None if gate is None else Gate(gate)

    def forward(self, logit: Tensor, label: Tensor, seen: Tensor, sample: Tensor) -> Tensor:
        if self.gate is not None:
            self.gate.pass_(int(sample[0]) // BATCH)
        loss: Tensor = self.loss(logit, label)
        return loss - BATCH * (seen - seen.detach()).mean()


class Gate:
    """Steps pass one by one, at most so fast, and only up to a number that a file holds."""

    PACE_S = 0.01

    def __init__(self, file: Path) -> None:
        self.file, self.open_to = file, -1

    def pass_(self, step: int) -> None:
        """Returns when a micro-batch of this step may go."""
        time.sleep(self.PACE_S)
        while step >= self.open_to:
            self.open_to = int(self.file.read_text() or -1)
            if step >= self.open_to:
                time.sleep(self.PACE_S)

    @staticmethod
    def open(file: Path, step: int) -> None:
        """Lets the steps before `step` go."""
        draft = file.with_suffix(".draft")
        draft.write_text(str(step))
        draft.replace(file)


def model(gate: str | None = None) -> Chain:
    """Two embeddings (one counts), two dense layers, the loss."""
    return seeded(lambda: _model(None if gate is None else Path(gate)))()


def _model(gate: Path | None) -> Chain:
    return Chain(
        embedding("rows"),
        embedding(COUNTER, reads="sample", dim=1, optimizer="sgd", lr=1.0, init_scale=0.0),
        fc("fc1", "rows", SLOTS * DIM, 8),
        fc("logit", "fc1", 8, 1, relu=False),
        Layer("loss", Counted(gate), reads=["logit", "label", COUNTER, "sample"], writes="loss"),
    )


def batches(steps: int) -> list[Batch]:
    """Batch n has the samples BATCH * n and on, each once in all."""
    generator = torch.Generator().manual_seed(11)
    found: list[Batch] = []
    for step in range(steps):
        ids = torch.randint(IDS, (BATCH, SLOTS), generator=generator)
        sample = torch.arange(step * BATCH, (step + 1) * BATCH)
        found.append({"ids": ids, "sample": sample, "label": ((ids % 7).sum(1) > 9).float()})
    return found


def factory(gate: str | None, steps: int) -> tuple[Any, Any]:
    return model(gate), batches(steps)
