"""Plans on other numbers of units: against the closed form where nothing varies, each limit by its own cause."""

from __future__ import annotations

from typing import Any

import pytest

from heterps.errors import InvalidInput
from heterps.plan import Cluster, Plan, Profile
from heterps.schedule.goal import Goal
from heterps.schedule.paper import paper_cluster, paper_profile
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem
from heterps.schedule.roofline import UNEVEN_SHARE
from heterps.schedule.simulation import Conditions, Point, scale
from heterps.schedule.simulation.growth import grown
from heterps.schedule.simulation.scale import shared_out

UNITS = (1, 10, 100, 1000)


def one_stage(goal: Goal | None = None, **cost: float) -> tuple[Problem, Plan]:
    """A layer on cores, on one unit and one of the server."""
    given = {"compute_s": 0.4, "sync_s": 0.1, "ps_s": 0.001, **cost}
    layer = {"name": "layer", "costs": {"cpu": given}}
    profile = {"format": "heterps.profile/1", "model": "one", "batch_size": 4096, "layers": [layer]}
    kind = {"device": "cpu", "price_per_hour": 1.0, "bandwidth_gbps": 10.0, "limit": 2}
    cluster = {"types": {"cpu": kind}, "parameter_server": "cpu"}
    problem = Problem(Profile.from_dict(profile), Cluster.from_dict(cluster), goal or Goal(min_throughput=1.0))
    return problem, make_plan(problem)


def scaled(
    conditions: Conditions | None = None, *, cost: dict[str, float] | None = None, **options: Any
) -> list[Point]:
    problem, plan = one_stage(**(cost or {}))
    return list(scale(problem, plan, conditions or Conditions(), UNITS, **options))


def test_work_that_divides_keeps_every_unit_busy() -> None:
    for point in scaled():
        assert point.efficiency == pytest.approx(1.0, rel=1e-3)
        assert (point.limit, point.limit_costs) == ("", 0.0)
        assert point.throughput == pytest.approx(point.units * 4096 / 0.4, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "seconds", "divisible", "limit"),
    [("alpha", 0.4, 0.99, "serial computing"), ("beta", 0.5, 0.99, "serial exchange")],
)
def test_what_does_not_divide_is_amdahls(name: str, seconds: float, divisible: float, limit: str) -> None:
    for point in scaled(cost={"sync_s": 0.5 if name == "beta" else 0.1, name: divisible}):
        assert point.throughput == pytest.approx(4096 / (seconds * (1 - divisible + divisible / point.units)), rel=2e-3)
        if point.units > 1:
            assert point.limit == limit
            assert point.limit_costs == pytest.approx(1 - point.efficiency, abs=2e-3)


def test_a_server_that_stays_is_the_limit() -> None:
    points = scaled(fixed_server=True)
    assert [point.server_units for point in points] == [1] * 4
    assert points[-1].throughput == pytest.approx(4096 / 0.001, rel=1e-3)
    assert points[-1].limit == "parameter server"
    assert [point.server_units for point in scaled()] == [*UNITS]


@pytest.mark.parametrize(
    ("conditions", "limit"),
    [
        (Conditions(jitter=0.3), "stragglers"),
        (Conditions(shared_gbps=20.0), "shared network"),
        (Conditions(failures_per_unit_hour=1e-2, restart_s=120.0), "failures"),
    ],
)
def test_each_condition_is_named_as_the_limit(conditions: Conditions, limit: str) -> None:
    points = scaled(conditions)
    assert points[-1].limit == limit
    assert points[-1].efficiency < 0.7
    assert [point.efficiency for point in points] == sorted((point.efficiency for point in points), reverse=True)
    assert scaled()[-1].limit == ""


def test_draining_is_the_limit_of_several_stages_in_sync_mode() -> None:
    sync = Goal(min_throughput=500_000.0, mode="sync", micro_batches=2)
    problem = Problem(paper_profile("ctrdnn"), paper_cluster(), sync)
    plan = make_plan(problem, method="heuristic")
    assert len(plan.stages) > 1
    own = sum(stage.units for stage in plan.stages)
    (point,) = scale(problem, plan, Conditions(), [own])
    assert point.limit == "draining"
    (steady,) = scale(problem, plan, Conditions(staleness=20), [own])
    assert steady.throughput > 1.1 * point.throughput


def test_a_batch_that_grows_shares_out_what_is_fixed() -> None:
    cost = {"alpha": 0.99}
    stays, grows = scaled(cost=cost)[-1], scaled(cost=cost, grow_batch=True)[-1]
    assert (stays.batch_size, grows.batch_size) == (4096, 4_096_000)
    assert stays.efficiency < 0.1
    assert grows.efficiency > 0.6
    uneven = scaled(cost={"alpha": 1 - UNEVEN_SHARE}, grow_batch=True)[-1]
    assert uneven.efficiency == pytest.approx(1 / (1 + 999 * UNEVEN_SHARE), rel=0.01)  # it grows with the samples


def test_grown_profiles_keep_seconds_of_a_step_and_multiply_those_of_samples() -> None:
    profile = paper_profile("ctrdnn")
    same, twice = grown(profile, profile.batch_size), grown(profile, 2 * profile.batch_size)
    for one, alike, two in zip(profile.layers, same.layers, twice.layers, strict=True):
        assert alike.output_bytes == one.output_bytes
        assert two.output_bytes == 2 * one.output_bytes
        for name, cost in one.costs.items():
            assert alike.costs[name].compute_s == pytest.approx(cost.compute_s)
            assert alike.costs[name].alpha == pytest.approx(cost.alpha)
            assert two.costs[name].ps_s == pytest.approx(2 * cost.ps_s)
            assert cost.compute_s <= two.costs[name].compute_s <= 2 * cost.compute_s * (1 + 1e-12)
            if not one.sharded:
                assert (two.costs[name].sync_s, two.costs[name].beta) == (cost.sync_s, cost.beta)
    Profile.from_dict(twice.to_dict())  # still a sound profile


@pytest.mark.parametrize("units", range(3, 60))
def test_units_are_shared_out_by_shares(units: int) -> None:
    shares = (12, 1, 5)
    given = shared_out(units, shares)
    assert sum(given) == units
    assert min(given) >= 1
    if units % sum(shares) == 0:
        assert given == [units // 18 * share for share in shares]
    assert all(abs(k - units * share / 18) < 2 for k, share in zip(given, shares, strict=True))


def test_too_few_units_are_refused() -> None:
    problem, plan = one_stage()
    for units in ([], [0], [5, -1]):
        with pytest.raises(InvalidInput, match="--units"):
            scale(problem, plan, Conditions(), units)
