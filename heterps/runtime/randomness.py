"""Random numbers of layers that draw, such as dropout: the same at every run, whatever else runs beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from heterps.runtime.stage import Stage, Step

Around = Callable[[Step, int], AbstractContextManager[object]]
"""What a forward of a step and micro-batch happens within."""
_drawing = threading.Lock()


def seed_of(seed: int, step: int, micro_batch: int, stage: int) -> int:
    """What layers that draw are seeded with: the same on any number of replicas, and after any restart."""
    mixed = 0x9E3779B97F4A7C15
    for value in (seed, step, micro_batch, stage):
        mixed = ((mixed ^ value) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) % 2**64
        mixed ^= mixed >> 29
    return mixed % 2**63


def seeded(stage: Stage, seed: int) -> Around | None:
    """Seeds each forward of a stage on the cores, if its layers draw; None for a stage on a GPU.

    All threads draw from one generator on the cores, so the forwards of stages that draw take turns. Whether a stage
    does shows in its first forward. A GPU has a generator of its own.
    """
    if stage.spec.device.type != "cpu":
        return None
    draws: bool | None = None
    generator = torch.default_generator

    @contextmanager
    def around(step: Step, micro_batch: int) -> Iterator[None]:
        nonlocal draws
        if draws is False:
            yield
            return
        with _drawing:
            generator.manual_seed(seed_of(seed, step.number, micro_batch, stage.spec.number))
            before = generator.get_state() if draws is None else None
            yield
            if before is not None:
                draws = not torch.equal(before, generator.get_state())

    return around
