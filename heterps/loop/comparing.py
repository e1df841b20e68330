"""Prediction and reality side by side, during a run and after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from heterps.catalog import Catalog
from heterps.loop.planning import Planned
from heterps.profile.assemble import assemble
from heterps.profile.calibrate import Observed, calibrate
from heterps.profile.measurement import Measurement
from heterps.runtime import Result
from heterps.schedule.cost import Breakdown
from heterps.schedule.planner import breakdown
from heterps.schedule.problem import Problem

WARM_UP_S = 3.0
"""Seconds of a run that are not looked at: rows are made, memory is taken, kernels are compiled (assumed)."""
WINDOW_S = 5.0
"""Seconds over which throughput is looked at (assumed): longer than a hiccup of a shared machine."""


def with_prediction(result: Result, planned: Planned) -> Result:
    """The result with each stage's predicted seconds."""
    seconds = planned.stage_seconds()
    stages = [replace(stage, predicted_s=own) for stage, own in zip(result.stages, seconds, strict=True)]
    return replace(result, stages=stages)


def calibrated(
    measured: Measurement, planned: Planned, *, measured_s: Sequence[float], throughput: float, catalog: Catalog
) -> Measurement:
    """The measurement, corrected by what a run of the plan took: seconds of each stage, and samples a second."""
    seen = Observed(plan=planned.plan, predicted_s=planned.stage_seconds(), measured_s=measured_s,
                    throughput=throughput)  # fmt: skip

    def predict(corrected: Measurement) -> tuple[float, int]:
        got = predicted(corrected, planned, catalog)
        return got.throughput, got.slowest if got.slowest is not None else 0

    return calibrate(measured, seen, predict)


def predicted(measured: Measurement, planned: Planned, catalog: Catalog) -> Breakdown:
    """What a measurement predicts of a plan."""
    cluster = planned.problem.cluster
    problem = Problem(assemble(measured, cluster, catalog=catalog), cluster, planned.problem.goal)
    return breakdown(problem, planned.plan)


@dataclass(slots=True)
class Drift:
    """Watches a run's throughput, and tells once when it leaves the prediction by more than a share of it.

    `on_drift` is called with the samples a second of the last window. Two windows in a row must be off.
    """

    predicted: float
    share: float
    on_drift: Callable[[float], None]
    _from: tuple[int, float] | None = None
    _off: int = 0
    _told: bool = False

    def __call__(self, samples: int, seconds: float) -> None:
        """Takes how far the run has come: samples, and seconds since its start."""
        if self._told or seconds < WARM_UP_S:
            return
        if self._from is None:
            self._from = samples, seconds
            return
        trained, lasted = samples - self._from[0], seconds - self._from[1]
        if lasted < WINDOW_S:
            return
        throughput = trained / lasted
        self._from = samples, seconds
        self._off = self._off + 1 if abs(throughput / self.predicted - 1) > self.share else 0
        if self._off == 2:
            self._told = True
            self.on_drift(throughput)
