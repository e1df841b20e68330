from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps import catalog as catalogs
from heterps.loop.comparing import WARM_UP_S, WINDOW_S, Drift, calibrated, predicted
from heterps.loop.planning import Planned
from heterps.plan import Cluster, ResourceType
from heterps.profile.assemble import assemble
from heterps.schedule.goal import Goal
from heterps.schedule.planner import plan_of_placement
from heterps.schedule.problem import Problem
from tests.loop.measurements import made_up

CATALOG = catalogs.load()
CLUSTER = Cluster(types={name: ResourceType(device="cpu", price_per_hour=0.04, limit=1) for name in ("left", "right")})


def two_stages() -> Planned:
    problem = Problem(assemble(made_up(), CLUSTER, catalog=CATALOG), CLUSTER, Goal(min_throughput=0.0))
    return Planned(problem, plan_of_placement(problem, ["left", "left", "right", "right"]))


@given(first=st.floats(0.3, 3.0), second=st.floats(0.3, 3.0), waits=st.floats(1.0, 1.5))
def test_after_calibration_the_same_plan_is_predicted_as_it_ran(first: float, second: float, waits: float) -> None:
    planned = two_stages()
    took = [seconds * factor for seconds, factor in zip(planned.stage_seconds(), (first, second), strict=True)]
    throughput = 1024 / max(took) / waits
    better = calibrated(made_up(), planned, measured_s=took, throughput=throughput, catalog=CATALOG)
    again = predicted(better, planned, CATALOG)
    assert again.throughput == pytest.approx(throughput, rel=1e-6)
    assert better.calibrated
    faster = took.index(min(took))
    if min(took) < 0.9 * max(took):
        assert again.stages[faster].compute_s * 1024 == pytest.approx(took[faster], rel=1e-6)


def test_a_run_as_predicted_changes_nothing() -> None:
    planned = two_stages()
    took, throughput = planned.stage_seconds(), planned.plan.predicted.throughput
    better = calibrated(made_up(), planned, measured_s=took, throughput=throughput, catalog=CATALOG)
    for layer, was in zip(better.layers, made_up().layers, strict=True):
        assert layer.cpu_s["1"] == pytest.approx(was.cpu_s["1"])


def run(drift: Drift, rates: list[float], *, every_s: float = 1.0) -> None:
    samples, seconds = 0.0, 0.0
    for rate in rates:
        samples, seconds = samples + rate * every_s, seconds + every_s
        drift(int(samples), seconds)


def test_a_run_that_stays_slow_is_told_once() -> None:
    told: list[float] = []
    run(Drift(1000.0, 0.25, told.append), [600.0] * 60)
    assert told == [pytest.approx(600.0, rel=0.01)]


def test_a_faster_run_is_told_too() -> None:
    told: list[float] = []
    run(Drift(1000.0, 0.25, told.append), [1400.0] * 60)
    assert len(told) == 1


@pytest.mark.parametrize(
    "rates",
    [
        [900.0] * 60,
        [100.0] * int(WARM_UP_S) + [1000.0] * 60,
        ([1000.0] * int(2 * WINDOW_S) + [100.0] * 2) * 4,
        [1000.0],
    ],
    ids=["within", "slow start", "hiccups", "short"],
)
def test_what_is_no_drift_is_not_told(rates: list[float]) -> None:
    told: list[float] = []
    run(Drift(1000.0, 0.25, told.append), rates)
    assert told == []
