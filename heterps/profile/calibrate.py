"""Learns from a run: what its stages took, fed back into the measurement that the plan was made from.

Each layer of a stage is stretched by what the stage took over what was predicted of it. What the pipeline then still
takes longer (or shorter) than its slowest stage, such as handing over, is the slowest stage's too: after calibration
the same plan is predicted to run as it ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heterps.plan import Plan
from heterps.profile.measurement import CPU, GPU, Measurement

LARGEST = 10.0
"""A stage that took more than this many times its prediction, or less than its inverse, is taken for this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a run gave."""

    plan: Plan
    predicted_s: Sequence[float]
    """Seconds of each stage for a step, as predicted."""
    measured_s: Sequence[float]
    """The same, measured."""
    throughput: float
    """Samples a second, measured."""


def calibrate(
    measured: Measurement, seen: Observed, predict: Callable[[Measurement], tuple[float, int]]
) -> Measurement:
    """The measurement, corrected by a run.

    Args:
        measured: what the plan was made from.
        seen: what the run gave.
        predict: from a measurement to the throughput of the same plan, and the number of its slowest stage.
    """
    factors = {kind: [1.0] * len(measured.layers) for kind in (CPU, GPU)}
    for number, (was, took) in enumerate(zip(seen.predicted_s, seen.measured_s, strict=True)):
        if was > 0 and took > 0:
            _stretch(factors, seen.plan, number, took / was)
    corrected = measured.scaled(factors)
    throughput, slowest = predict(corrected)
    if seen.throughput > 0:
        _stretch(factors, seen.plan, slowest, throughput / seen.throughput)
    return measured.scaled(factors)


def _stretch(factors: dict[str, list[float]], plan: Plan, number: int, factor: float) -> None:
    stage = plan.stages[number]
    kind = GPU if plan.types[stage.type].device == "cuda" else CPU
    for layer in range(stage.first, stage.last + 1):
        factors[kind][layer] *= min(max(factor, 1 / LARGEST), LARGEST)
