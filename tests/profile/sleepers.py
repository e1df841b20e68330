"""Layers that take a known time, and efforts that take little."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from heterps.models import Batch, Chain, Layer
from heterps.profile.measure import Efforts
from heterps.profile.sweep import Effort
from tests.runtime import chains

ONE_STEP = Effort(steps=1, seconds=0.0, least=1)
QUICK = Efforts(layers=ONE_STEP, small=ONE_STEP, whole=ONE_STEP, fill_s=0.0, reading_s=0.0, core_s=0.001)


class _SleepingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        time.sleep(ctx.seconds)
        return grads[0], None


class Sleeper(nn.Module):
    """Sleeps in forward, in backward, or in both; notes each call's samples and threads."""

    def __init__(self, *, forward_s: float = 0.0, backward_s: float = 0.0) -> None:
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.samples: list[int] = []
        self.threads: list[int] = []

    def forward(self, values: Tensor) -> Tensor:
        self.samples.append(len(values))
        self.threads.append(torch.get_num_threads())
        if self.forward_s:
            time.sleep(self.forward_s)
        return _SleepingBackward.apply(values, self.backward_s)


def sleepy(*sleepers: Sleeper) -> Chain:
    """Rows, a fully connected layer, these, another one and the loss."""
    layers = [chains.embedding("rows"), chains.fc("fc", ["rows", "dense"], chains.SLOTS * chains.DIM + chains.DENSE, 4)]
    for number, sleeper in enumerate(sleepers):
        layers.append(Layer(f"nap{number}", sleeper, reads=layers[-1].name, writes=f"nap{number}"))
    return Chain(*layers, chains.fc("logit", layers[-1].name, 4, 1, relu=False), chains.loss())


def even_batches(count: int, *, size: int = 16) -> list[Batch]:
    """All of one size."""
    return [
        {name: value[:size] for name, value in batch.items()} for batch in chains.random_batches(count, size=size + 1)
    ]
