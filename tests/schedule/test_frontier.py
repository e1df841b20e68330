"""The frontier against all plans of small problems, and how it is spread where it is long."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heterps.plan import Cluster, Plan, Profile
from heterps.schedule import frontier as module
from heterps.schedule.frontier import frontier
from heterps.schedule.goal import Goal
from heterps.schedule.paper import paper_cluster, paper_profile
from heterps.schedule.problem import Problem
from heterps.units import MILLION
from tests.schedule.reference import Point, random_reference

SAME = 1e-6


def steps(points: list[Point]) -> list[Point]:
    """The points than which none is faster and as cheap, from the slowest on."""
    kept: list[Point] = []
    # Nine digits: sums in another order differ in the last ones.
    for point in sorted(points, key=lambda point: (-float(f"{point.throughput:.9g}"), point.usd_per_sample)):
        if not kept or point.usd_per_sample < kept[-1].usd_per_sample * (1 - SAME):
            kept.append(point)
    return kept[::-1]


def figures(plan: Plan) -> tuple[float, float]:
    return plan.predicted.throughput, plan.predicted.usd_per_million_samples


@pytest.mark.parametrize("block", range(4))
def test_all_steps_where_there_are_at_most_as_many_as_points(block: int) -> None:
    for seed in range(15 * block, 15 * (block + 1)):
        reference = random_reference(seed)
        expected = steps(reference.all_points())
        if not expected:
            continue
        problem = Problem(reference.profile, reference.cluster, reference.goal)
        got = [figures(plan) for plan in frontier(problem, points=max(2, len(expected)))]
        assert len(got) == len(expected), seed
        for (throughput, cost), step in zip(got, expected, strict=True):
            assert throughput == pytest.approx(step.throughput, rel=2 * SAME), seed
            assert cost == pytest.approx(step.usd_per_sample * MILLION, rel=2 * SAME), seed


def one_layer(*, alpha: float, limit: int = 480) -> Problem:
    costs = {"cpu": {"compute_s": 1.0, "sync_s": 0.0, "alpha": alpha}}
    profile = {"format": "heterps.profile/1", "batch_size": 1, "layers": [{"name": "a", "costs": costs}]}
    cluster = {"types": {"cpu": {"device": "cpu", "price_per_hour": 1.0, "limit": limit}}}
    return Problem(Profile.from_dict(profile), Cluster.from_dict(cluster), Goal(min_throughput=0.0))


def test_steps_that_lie_close_together_are_all_found() -> None:
    """Each unit is a step; the last of them differ by less than a hundredth in throughput."""
    got = [plan.stages[0].units for plan in frontier(one_layer(alpha=0.5, limit=24), points=24)]
    assert got == list(range(1, 25))


def test_of_equally_cheap_plans_only_the_fastest_is_a_step() -> None:
    got = list(frontier(one_layer(alpha=1.0)))
    assert [plan.stages[0].units for plan in got] == [480]


@pytest.mark.parametrize("serial", [1e-6, 1e-7, 1e-8])
def test_plans_that_are_almost_equally_cheap_end_too(serial: float) -> None:
    got = [figures(plan) for plan in frontier(one_layer(alpha=1 - serial), points=12)]
    assert 2 <= len(got) <= 12
    assert got[-1][0] == pytest.approx(480, rel=1e-3)
    for (speed, cost), (faster, dearer) in pairwise(got):
        assert faster > speed
        assert dearer > cost * (1 + SAME)


def test_a_long_frontier_is_spread_and_takes_few_more_searches_than_points(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    make_plan = module.make_plan
    monkeypatch.setattr(module, "make_plan", lambda *args, **kwargs: calls.append(1) or make_plan(*args, **kwargs))
    got = list(frontier(Problem(paper_profile("ctrdnn"), paper_cluster(), Goal(min_throughput=0.0)), points=16))
    assert len(got) == 16
    assert len(calls) <= 24
    speeds = [plan.predicted.throughput for plan in got]
    assert max(b / a for a, b in pairwise(speeds)) < (speeds[-1] / speeds[0]) ** 0.4


def test_one_point_is_the_cheapest_plan() -> None:
    problem = one_layer(alpha=0.5)
    assert [plan.stages[0].units for plan in frontier(problem, points=1)] == [1]
    assert [plan.stages[0].units for plan in frontier(problem, points=2)] == [1, 480]
