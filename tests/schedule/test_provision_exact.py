"""The native provisioning and the exact method against enumeration of every plan, on small random problems.

A failure names the seed: `random_reference(seed)` makes the same problem again.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from heterps._native import Graph
from heterps.schedule.cost import evaluate, stage_runs, stage_times, violations
from heterps.schedule.goal import Goal
from heterps.schedule.methods.bounding import Interval
from heterps.schedule.methods.brute_force import BruteForce
from heterps.schedule.methods.exact import Exact
from heterps.schedule.objective import ClosedForm
from heterps.schedule.problem import Problem
from heterps.schedule.search import Outcome, Settings, search
from tests.schedule.reference import Reference, random_inputs, random_reference

SEEDS = range(300)
CLOSE = 1e-8
"""Provisioning is exact but for the slack of 1e-9 in counting units."""
TO_THE_END = 10**9
"""Effort that no problem of these needs."""
OPTIMAL = 1e-6
"""A plan within this share of a proved bound is called optimal."""

reference_of = cache(random_reference)


def _half(seeds: range) -> list[Any]:
    """The first half of the seeds; with the long tests, all."""
    middle = len(seeds) // 2
    return [*seeds[:middle], *(pytest.param(seed, marks=pytest.mark.soak) for seed in seeds[middle:])]


@pytest.fixture(params=_half(SEEDS), scope="module")
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def reference(seed: int) -> Reference:
    return reference_of(seed)


def cheapest_goals(reference: Reference, seed: int) -> list[Goal]:
    """Any throughput, some that plans reach exactly or nearly, more than any reaches, and caps on the money."""
    rng = random.Random(seed)
    goal = reference.goal
    points = reference.all_points()
    if not points:
        return [goal, replace(goal, min_throughput=1.0)]
    picks = [rng.choice(points) for _ in range(3)]
    goals = [goal, *(replace(goal, min_throughput=pick.throughput) for pick in picks)]
    goals.append(replace(goal, min_throughput=picks[0].throughput * rng.uniform(0.5, 1.5)))
    goals.append(replace(goal, min_throughput=max(point.throughput for point in points) * 1.001))
    rates = [rng.choice(points).usd_per_hour, rng.choice(points).usd_per_hour * rng.uniform(0.8, 1.2)]
    low = min(point.throughput for point in points)
    goals += [replace(goal, min_throughput=low * rng.uniform(1, 3), max_usd_per_hour=rate) for rate in rates]
    return goals


def fastest_goals(reference: Reference, seed: int) -> list[Goal]:
    """Budgets that some plan meets exactly, that lie between plans, and that none meets; with a cap on the money."""
    rng = random.Random(seed)
    base = replace(reference.goal, min_throughput=None, samples=1e6, budget_usd=1e9)
    points = reference.all_points()
    if not points:
        return [base]
    costs = sorted(point.usd_per_sample for point in points)
    budgets = [costs[0], rng.choice(costs), rng.choice(costs) * rng.uniform(1, 1.3), costs[-1] * 2, costs[0] * 0.999]
    goals = [replace(base, budget_usd=budget * 1e6) for budget in budgets]
    return [*goals, replace(goals[2], max_usd_per_hour=rng.choice(points).usd_per_hour * 1.01)]


def problem_of(reference: Reference, goal: Goal) -> Problem:
    return Problem(reference.profile, reference.cluster, goal)


def run_exact(problem: Problem) -> Outcome:
    objective = ClosedForm(problem)
    return search(objective, Exact(objective, Settings()))


def check_units(problem: Problem, placement: tuple[str, ...]) -> None:
    """The units behind a score keep every limit and give what is said, by the cost model."""
    row = problem.encode(placement)
    found = ClosedForm(problem).provision(row[0])
    assert found is not None
    profile, cluster, goal = problem.profile, problem.cluster, problem.goal
    stages = stage_times(profile, cluster, placement)
    assert violations(cluster, stages, found.units, found.server_units) == []
    plan = evaluate(profile, cluster, placement, found.units, found.server_units, goal=goal)
    assert plan.throughput == pytest.approx(found.throughput, rel=CLOSE)
    assert plan.usd_per_sample == pytest.approx(found.usd_per_sample, rel=CLOSE)
    assert plan.throughput >= goal.throughput_floor * (1 - CLOSE)
    assert plan.usd_per_hour <= problem.max_rate * (1 + CLOSE)
    assert plan.usd_per_sample <= goal.max_usd_per_sample * (1 + CLOSE)


def test_every_placement_gets_its_cheapest_units(reference: Reference, seed: int):
    for goal in cheapest_goals(reference, seed):
        problem = problem_of(reference, goal)
        scores = ClosedForm(problem).score(np.concatenate([problem.encode(p) for p in reference.points]))
        for placement, value, violation in zip(reference.points, scores.value, scores.violation, strict=True):
            expected = reference.cheapest(goal, placement)
            assert value == pytest.approx(expected, rel=CLOSE), (seed, goal, placement)
            assert (violation > 0) == math.isinf(expected), (seed, goal, placement)
            if math.isfinite(expected):
                check_units(problem, placement)


def test_every_placement_gets_its_fastest_units(reference: Reference, seed: int):
    for goal in fastest_goals(reference, seed):
        problem = problem_of(reference, goal)
        scores = ClosedForm(problem).score(np.concatenate([problem.encode(p) for p in reference.points]))
        for placement, value, violation in zip(reference.points, scores.value, scores.violation, strict=True):
            expected = reference.fastest(goal, placement)
            assert 1 / value == pytest.approx(expected, rel=CLOSE), (seed, goal, placement)
            assert (violation > 0) == (expected == 0), (seed, goal, placement)
            if expected > 0:
                check_units(problem, placement)


def test_cutoff_spares_only_what_cannot_beat_it(reference: Reference, seed: int):
    goal = cheapest_goals(reference, seed)[1]
    problem = problem_of(reference, goal)
    best = {placement: reference.cheapest(goal, placement) for placement in reference.points}
    cutoff = float(np.median([*best.values()]))
    scores = ClosedForm(problem).score(np.concatenate([problem.encode(p) for p in best]), cutoff=cutoff)
    for (placement, expected), value in zip(best.items(), scores.value, strict=True):
        if expected < cutoff * (1 - CLOSE):
            assert value == pytest.approx(expected, rel=CLOSE), (seed, goal, placement)
        else:
            assert value >= expected * (1 - CLOSE), (seed, goal, placement)


def test_exact_finds_and_proves_the_cheapest_plan(reference: Reference, seed: int):
    for goal in cheapest_goals(reference, seed):
        problem = problem_of(reference, goal)
        outcome, expected = run_exact(problem), reference.cheapest(goal)
        assert outcome.value == pytest.approx(expected, rel=OPTIMAL), (seed, goal)
        assert (outcome.placement is None) == math.isinf(expected), (seed, goal)
        if outcome.placement is not None:
            assert expected * (1 - OPTIMAL) <= outcome.proved <= expected * (1 + CLOSE), (seed, goal)
            check_units(problem, problem.decode(outcome.placement))


def test_exact_finds_and_proves_the_fastest_plan(reference: Reference, seed: int):
    for goal in fastest_goals(reference, seed):
        problem = problem_of(reference, goal)
        outcome, expected = run_exact(problem), reference.fastest(goal)
        assert 1 / outcome.value == pytest.approx(expected, rel=OPTIMAL), (seed, goal)
        assert (outcome.placement is None) == (expected == 0), (seed, goal)
        if outcome.placement is not None:
            assert (1 - OPTIMAL) / expected <= outcome.proved <= (1 + CLOSE) / expected, (seed, goal)
            check_units(problem, problem.decode(outcome.placement))


def test_bounds_hold(reference: Reference, seed: int):
    """On intervals of throughput: prices on limits and branching, given up or not, never bound above the cheapest plan
    in them; at a single throughput, branching to the end bounds by exactly the least money an hour.
    """
    rng = random.Random(seed)
    points = [(len(stage_runs(placement)), p) for placement, found in reference.points.items() for p in found]
    if not points:
        return
    stages = 0 if reference.goal.mode == "async" else rng.randint(1, len(reference.profile.layers))
    cap = rng.choice(points)[1].usd_per_hour * 1.01
    # (steady throughput, dollars an hour) of the plans that are looked for
    plans = [
        (point.throughput / reference.goal.fill(count), point.usd_per_hour)
        for count, point in points
        if point.usd_per_hour <= cap and (not stages or count <= stages)
    ]
    problem = problem_of(reference, replace(reference.goal, max_usd_per_hour=cap))
    graph = Graph(problem.tables)
    steady = sorted(point.throughput / reference.goal.fill(count) for count, point in points)
    for _ in range(4):
        low, high = sorted([rng.choice(steady) * rng.uniform(0.7, 1), rng.choice(steady) * rng.uniform(1, 1.5)])
        least = min((rate / t for t, rate in plans if low <= t <= high), default=math.inf)
        scale = 0.3 * rng.random() * min(1.0, least)
        prices = np.array([rng.choice([0.0, scale * rng.random()]) for _ in range(problem.types + 1)])
        interval = Interval(low, high, stages, graph, prices)
        assert interval.relax().bound <= least * (1 + CLOSE), (seed, interval)
        for effort in (1000, 10_000, TO_THE_END):
            assert interval.branch(math.inf, effort).bound <= least * (1 + CLOSE), (seed, interval)
            narrowed = interval.narrowed(least * 1.01)
            assert narrowed.branch(least * 1.01, effort).bound <= least * (1 + CLOSE), (seed, interval)

        exact = min((rate / low for t, rate in plans if t >= low * (1 - CLOSE / 10)), default=math.inf)
        at_low = Interval(low, low, stages, graph, np.zeros(problem.types + 1))
        for cutoff in (math.inf, exact * 1.1, exact * 1.001):
            assert at_low.branch(cutoff, TO_THE_END).bound == pytest.approx(exact, rel=CLOSE), (seed, low, cutoff)


@pytest.mark.parametrize("larger_seed", _half(range(150)))
def test_exact_equals_brute_force_on_larger_problems(larger_seed: int):
    """Up to 8 layers and 3 types: enough stages for limits to interact, few enough placements to score all of them."""
    rng = random.Random(larger_seed)
    profile, cluster = random_inputs(rng, layers=rng.randint(6, 8), types=3)
    sync = rng.random() < 0.4
    goal = Goal(min_throughput=0, mode="sync" if sync else "async", micro_batches=rng.randint(1, 8) if sync else None)
    objective = ClosedForm(Problem(profile, cluster, goal))
    anything = search(objective, BruteForce(objective, Settings()))
    if anything.placement is None:
        return
    found = objective.provision(anything.placement)
    assert found is not None
    for factor in (1.0, 1.3, 1.7, 2.2):
        problem = Problem(profile, cluster, replace(goal, min_throughput=found.throughput * factor))
        objective = ClosedForm(problem)
        expected, outcome = search(objective, BruteForce(objective, Settings())).value, run_exact(problem)
        assert outcome.value == pytest.approx(expected, rel=OPTIMAL), factor
        if outcome.placement is not None:
            assert expected * (1 - OPTIMAL) <= outcome.proved <= expected * (1 + CLOSE), factor


def test_the_random_problems_are_wide():
    """Guards the tests above: enough problems are feasible, and every constraint is there and binds in some."""
    references = [reference_of(seed) for seed in SEEDS]
    kinds = [[*r.cluster.types.values()] for r in references]
    assert sum(bool(r.all_points()) for r in references) > 0.8 * len(SEEDS)
    assert sum(r.goal.mode == "sync" for r in references) > 50
    assert sum(r.cluster.parameter_server is not None for r in references) > 100
    assert sum(any(point.server_units > 1 for point in r.all_points()) for r in references) > 50
    assert sum(any(kind.memory_gb is not None for kind in offer) for offer in kinds) > 50
    assert sum(any(len(layer.costs) < len(r.cluster.types) for layer in r.profile.layers) for r in references) > 50
    partly = [r for r in references if any(r.points.values()) and not all(r.points.values())]
    assert len(partly) > 50
