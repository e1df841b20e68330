"""The paper's provisioning and static ratios against the exact one, and the frontier."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from heterps.errors import InvalidInput
from heterps.plan import Cluster, Profile
from heterps.schedule.cost import evaluate, stage_times, violations
from heterps.schedule.frontier import frontier
from heterps.schedule.goal import Goal
from heterps.schedule.objective import Provisioning
from heterps.schedule.paper import paper_cluster, paper_profile
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem
from heterps.schedule.provision import provision_exact, provision_newton, provision_ratio
from heterps.schedule.random_problems import random_problem

PAPER = Problem(paper_profile("ctrdnn"), paper_cluster(), Goal(min_throughput=500_000.0))
MIXED = ("cpu",) * 3 + ("v100",) * 13
PAIR = ("cpu", "gpu")


def pair(goal: Goal, *, limits: tuple[int, int] | None = None, **cost: float) -> Problem:
    """One layer that only cores run and one that only GPUs run, of one second on one unit each."""
    costs = {"compute_s": 1.0, "sync_s": 0.0, **cost}
    layers = [{"name": name, "costs": {name: costs}} for name in PAIR]
    types = {"cpu": {"device": "cpu", "price_per_hour": 0.1}, "gpu": {"device": "cuda", "price_per_hour": 1.0}}
    for name, limit in zip(PAIR, limits or (), strict=False):
        types[name]["limit"] = limit
    profile = {"format": "heterps.profile/1", "batch_size": 1, "layers": layers}
    return Problem(Profile.from_dict(profile), Cluster.from_dict({"types": types, "parameter_server": "cpu"}), goal)


@pytest.mark.parametrize("seed", range(60))
def test_every_provisioning_keeps_the_constraints_and_exact_is_cheapest(seed: int) -> None:
    rng = np.random.default_rng([seed, 4])
    problem = random_problem(rng, layers=6, types=3, sync=seed % 3 == 0)
    placement = make_plan(problem).placement
    exact, newton = provision_exact(problem, placement), provision_newton(problem, placement)
    assert exact is not None
    assert newton is not None
    for made in (exact, newton, provision_ratio(problem, placement, "1:8")):
        if made is None:
            continue
        got = evaluate(problem.profile, problem.cluster, placement, made.units, made.server_units, goal=problem.goal)
        stages = stage_times(problem.profile, problem.cluster, placement)
        assert not violations(problem.cluster, stages, made.units, made.server_units)
        assert got.throughput >= problem.goal.throughput_floor * (1 - 1e-9)
        assert got.usd_per_sample == pytest.approx(made.usd_per_sample, rel=1e-9)
        assert made.usd_per_sample >= exact.usd_per_sample * (1 - 1e-9)


def test_newton_finds_the_continuous_optimum() -> None:
    """Where a stage idles at one unit, the balanced optimum lies inside; a fine grid of times finds no better."""
    made = provision_newton(PAPER, MIXED)
    assert made is not None
    stages = stage_times(PAPER.profile, PAPER.cluster, MIXED)
    prices = [PAPER.cluster.types[stage.type].price_per_hour for stage in stages]

    def cost(x: float) -> float:
        units = [max(1.0, s.parallel_s / (x - s.serial_s), s.sync_parallel_s / (x - s.sync_serial_s)) for s in stages]
        return x * sum(p * k for p, k in zip(prices, units, strict=True))

    grid = np.linspace(1 / 2e6, 1 / 500_000, 20_000)
    best = grid[np.argmin([cost(x) for x in grid])]
    units = [
        np.ceil(max(1.0, s.parallel_s / (best - s.serial_s), s.sync_parallel_s / (best - s.sync_serial_s)) - 1e-3)
        for s in stages
    ]
    assert made.units == pytest.approx(units, abs=1)


@pytest.mark.parametrize("limits", [None, (10**6, 10**6), (3, 3)])
def test_newton_takes_the_fewest_units_where_the_cost_is_flat(limits: tuple[int, int] | None) -> None:
    """With nothing serial a sample costs the same at any throughput; the one asked for keeps the most limits."""
    made = provision_newton(pair(Goal(min_throughput=2.5), limits=limits), PAIR)
    assert made is not None
    assert made.units == (3, 3)


def test_newton_reaches_exactly_what_a_serial_stage_allows() -> None:
    made = provision_newton(pair(Goal(min_throughput=1.0), alpha=0.0), PAIR)
    assert made is not None
    assert made.units == (1, 1)
    assert provision_newton(pair(Goal(min_throughput=1.001), alpha=0.0), PAIR) is None


def test_newton_slows_down_to_what_limits_and_money_allow() -> None:
    """One GPU is idle until 20 cores keep it busy; with fewer cores the stages are slower, not impossible."""
    layers = [
        {"name": "a", "costs": {"cpu": {"compute_s": 1.0, "sync_s": 0.0, "alpha": 0.999}}},
        {"name": "b", "costs": {"gpu": {"compute_s": 0.05, "sync_s": 0.0}}},
    ]
    profile = Profile.from_dict({"format": "heterps.profile/1", "batch_size": 1, "layers": layers})
    types = {"cpu": {"device": "cpu", "price_per_hour": 0.1}, "gpu": {"device": "cuda", "price_per_hour": 100.0}}
    for limit, rate, cores in ((None, None, 21), (8, None, 8), (None, 101.2, 12), (2, None, 2), (1, None, None)):
        cpu = types["cpu"] | ({} if limit is None else {"limit": limit})
        goal = Goal(min_throughput=1.5, max_usd_per_hour=rate)
        made = provision_newton(Problem(profile, Cluster.from_dict({"types": types | {"cpu": cpu}}), goal), PAIR)
        assert (made and made.units) == (cores and (cores, 1))


@pytest.mark.parametrize(
    "provision", [provision_newton, lambda problem, placement: provision_ratio(problem, placement, "1:1")]
)
def test_the_server_is_no_larger_than_limits_allow(provision: Callable[..., Provisioning | None]) -> None:
    """1.5 samples/s take two units, which could do 2; a core is left for a server of 1 unit, which does 1.5."""
    made = provision(pair(Goal(min_throughput=1.5), limits=(3, 2), ps_s=1 / 3), PAIR)
    assert made == Provisioning((2, 2), 1, pytest.approx(1.5), pytest.approx(2.3 / 1.5 / 3600))


def test_where_any_throughput_will_do_one_unit_may_serve() -> None:
    made = provision_newton(pair(Goal(min_throughput=0.0), limits=(2, 1), ps_s=2.0), PAIR)
    assert made == Provisioning((1, 1), 1, pytest.approx(0.25), pytest.approx(1.2 / 0.25 / 3600))


@pytest.mark.parametrize("wanted", [1.0, 2.0, 2.5, 3.0])
def test_static_ratio_need_not_be_a_power_of_two(wanted: float) -> None:
    made = provision_ratio(pair(Goal(min_throughput=wanted), limits=(24, 3)), PAIR, "1:8")
    n = math.ceil(wanted)
    assert made is not None
    assert made.units == (8 * n, n)
    assert provision_ratio(pair(Goal(min_throughput=3.1), limits=(24, 3)), PAIR, "1:8") is None


def test_static_ratio_is_the_least_multiple() -> None:
    made = provision_ratio(PAPER, MIXED, "1:8")
    assert made is not None
    cores, gpus = made.units
    assert cores == 8 * gpus
    stages = stage_times(PAPER.profile, PAPER.cluster, MIXED)
    fewer = [8 * (gpus - 1), gpus - 1]
    assert 1 / max(stage.seconds(k) for stage, k in zip(stages, fewer, strict=True)) < 500_000
    for bad in ("8", "0:1", "a:b", "1:2:3"):
        with pytest.raises(InvalidInput, match="1:8"):
            provision_ratio(PAPER, MIXED, bad)


def test_frontier_rises_and_every_point_is_the_cheapest_as_fast() -> None:
    plans = list(frontier(Problem(PAPER.profile, PAPER.cluster, Goal(min_throughput=0.0)), points=8))
    assert len(plans) >= 5
    for before, after in itertools.pairwise(plans):
        assert after.predicted.throughput > before.predicted.throughput
        assert after.predicted.usd_per_million_samples >= before.predicted.usd_per_million_samples * (1 - 1e-9)
    for plan in plans:
        assert plan.search.optimal
        goal = Goal(min_throughput=plan.predicted.throughput * (1 - 1e-9))
        again = make_plan(Problem(PAPER.profile, PAPER.cluster, goal))
        assert again.predicted.usd_per_million_samples == pytest.approx(
            plan.predicted.usd_per_million_samples, rel=2e-6
        )
