"""Layers that take a known time, a clock by which nothing else does, and efforts that take little."""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import Tensor, nn

from heterps.models import Batch, Chain, Layer
from heterps.profile.measure import Efforts
from heterps.profile.sweep import Effort
from tests.runtime import chains

sleep = time.sleep
ONE_STEP = Effort(steps=1, seconds=0.0, least=1)
QUICK = Efforts(layers=ONE_STEP, small=ONE_STEP, whole=ONE_STEP, fill_s=0.0, reading_s=0.0, core_s=0.001)


MOMENT_S = 1e-6


class NapTime:
    """A clock of naps alone: whatever else the machine does, all else takes a moment each time that it is asked."""

    def __init__(self) -> None:
        self._now, self._lock = 0.0, threading.Lock()

    def perf_counter(self) -> float:
        """As in `time`."""
        return self._pass(MOMENT_S)

    def sleep(self, seconds: float) -> None:
        """As in `time`: others measure by real clocks."""
        time.sleep(seconds)
        self._pass(seconds)

    def _pass(self, seconds: float) -> float:
        with self._lock:
            self._now += seconds
            return self._now


class _SleepingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        sleep(ctx.seconds)
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
            sleep(self.forward_s)
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
