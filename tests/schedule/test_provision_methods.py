"""The paper's provisioning and static ratios against the exact one, and the frontier."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from heterps.errors import InvalidInput
from heterps.schedule.cost import evaluate, stage_times, violations
from heterps.schedule.frontier import frontier
from heterps.schedule.goal import Goal
from heterps.schedule.paper import paper_cluster, paper_profile
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem
from heterps.schedule.provision import provision_exact, provision_newton, provision_ratio
from heterps.schedule.random_problems import random_problem

PAPER = Problem(paper_profile("ctrdnn"), paper_cluster(), Goal(min_throughput=500_000.0))
MIXED = ("cpu",) * 3 + ("v100",) * 13


@pytest.mark.parametrize("seed", range(60))
def test_every_provisioning_keeps_the_constraints_and_exact_is_cheapest(seed: int) -> None:
    rng = np.random.default_rng([seed, 4])
    problem = random_problem(rng, layers=6, types=3, sync=seed % 3 == 0)
    placement = make_plan(problem).placement
    exact = provision_exact(problem, placement)
    assert exact is not None
    for made in (exact, provision_newton(problem, placement), provision_ratio(problem, placement, "1:8")):
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
