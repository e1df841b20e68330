"""A few seconds of real training by a plan: what its stages and the whole take a step in the steady state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from heterps.models import Chain
from heterps.plan import Plan
from heterps.profile.sweep import Effort
from heterps.runtime.settings import Settings
from heterps.runtime.train import train
from heterps.telemetry import Recorder
from heterps.telemetry.ledger import Span
from heterps.telemetry.records import Kind, Record

CPU_TYPE, GPU_TYPE = "cpu", "gpu"
FIRST_STEPS = 12
MOST_STEPS = 4000
STRETCHES = 5


@dataclass(frozen=True, slots=True)
class Probed:
    """Seconds of a step: of the whole pipeline, and of each stage's work."""

    step_s: float
    stage_s: tuple[float, ...]


def probe(make: Callable[[], Chain], data: Any, plan: Plan, settings: Settings, effort: Effort) -> Probed:
    """Trains by a plan for about `effort.seconds`; the first half is not counted.

    Args:
        make: gives the chain, anew each time it is called.
        data: a source, or batches in memory.
        plan: what to run here.
        settings: of the run; neither evaluations nor checkpoints are made.
        effort: how long.
    """
    options: dict[str, Any] = {
        "mode": settings.mode, "staleness": settings.staleness, "micro_batches": settings.micro_batches,
        "batch_size": settings.batch_size, "optimizer": settings.optimizer, "lr": settings.lr,
        "precision": settings.precision, "seed": settings.seed, "devices": settings.devices,
    }  # fmt: skip
    steps = FIRST_STEPS
    while True:
        seen = _Steps()
        with Recorder([seen]) as recorder:
            result = train(make(), data, plan, steps=steps, recorder=recorder, **options)
        if result.stopped == "interrupted":  # a run ends cleanly at Ctrl-C; here nothing is left to do
            raise KeyboardInterrupt
        times = [seen.began[step] for step in sorted(seen.began)]
        times = times[len(times) // 2 :]  # the first half: kernels are compiled, graphs recorded, queues filled
        lasted = times[-1] - times[0]
        step_s = _typical(times)
        if lasted >= effort.seconds / 3 or steps >= MOST_STEPS:
            return Probed(step_s, tuple(stage.measured_s for stage in result.stages))
        steps = min(MOST_STEPS, max(2 * steps, int(effort.seconds / step_s)))


def _typical(times: Sequence[float]) -> float:
    """Seconds between steps: the median of stretches' means, as stages run ahead in bursts and machines hiccup."""
    bounds = np.linspace(0, len(times) - 1, STRETCHES + 1).round().astype(int)
    means = [(times[b] - times[a]) / (b - a) for a, b in pairwise(bounds) if b > a]
    return float(np.median(means))


def plan_of(stages: Sequence[tuple[str, str, int, int]]) -> Plan:
    """A plan to try, without a prediction: (type, device, layers, units) of each stage."""
    made, first = [], 0
    for name, _, layers, units in stages:
        made.append({"first": first, "last": first + layers - 1, "type": name, "units": units})
        first += layers
    return Plan.from_dict({
        "format": "heterps.plan/1", "model": "probe", "method": "given",
        "placement": [name for name, _, layers, _ in stages for _ in range(layers)],
        "types": {name: {"device": device, "price_per_hour": 1.0} for name, device, _, _ in stages},
        "stages": made, "predicted": {"throughput": 1.0, "usd_per_hour": 1.0, "usd_per_million_samples": 1.0},
        "search": {"seconds": 0.0, "evaluations": 0, "optimal": False},
        "inputs": {"profile_sha256": "", "cluster_sha256": "", "min_throughput": 0.0},
    })  # fmt: skip


class _Steps:
    """A sink that notes when the steps of stage 0 began."""

    kinds: frozenset[Kind] = frozenset({"span"})

    def __init__(self) -> None:
        self.began: dict[int, float] = {}

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Span) and record.name == "forward" and record.stage == 0 and record.step is not None:
                self.began.setdefault(record.step, record.t)

    def close(self) -> None:
        pass
