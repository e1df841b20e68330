"""The next best placements against all placements that differ in one stretch of layers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from heterps.plan import Cluster, Plan, Profile
from heterps.schedule.alternatives import alternatives, others
from heterps.schedule.goal import Goal
from heterps.schedule.neighbours import stretches
from heterps.schedule.objective import ClosedForm
from heterps.schedule.planner import plan_of_placement
from heterps.schedule.problem import Problem
from heterps.schedule.random_problems import random_problem


def one_stretch_away(placement: tuple[int, ...], runnable: np.ndarray) -> set[tuple[int, ...]]:
    """By trying all: what is the placement again once some type is on the layers from the first change to the last."""
    found = set()
    for other in product(*(np.flatnonzero(row).tolist() for row in runnable)):
        changed = [i for i, (a, b) in enumerate(zip(placement, other, strict=True)) if a != b]
        if changed and len(set(other[changed[0] : changed[-1] + 1])) == 1:
            found.add(other)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_stretches_are_all_placements_that_differ_in_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers, types = [(7, 2), (5, 3)][seed % 2]
    runnable = rng.random((layers, types)) < 0.8
    runnable[:, 0] = True
    placement = np.array([rng.choice(np.flatnonzero(row)) for row in runnable], dtype=np.int32)
    got = [tuple(row.tolist()) for row in stretches(placement, runnable)]
    assert len(got) == len(set(got))
    assert set(got) == one_stretch_away(tuple(placement.tolist()), runnable)


def test_in_long_chains_layers_edges_of_stages_and_whole_stages_are_still_there() -> None:
    layers, types = 200, 8
    placement = np.repeat(np.arange(types, dtype=np.int32), layers // types)
    got = stretches(placement, np.ones((layers, types), dtype=bool))
    assert len(got) < 5 * layers * types
    changed = [np.flatnonzero(row != placement) for row in got]
    assert sum(len(at) == 1 for at in changed) == layers * (types - 1)
    for first, last in ((25, 49), (25, 40), (31, 49), (60, 62)):
        assert sum((at[0], at[-1]) == (first, last) for at in changed) == types - 1
    assert not any((at[0], at[-1]) == (30, 40) for at in changed)


@pytest.mark.parametrize("seed", range(10))
def test_alternatives_are_the_best_of_them_in_order(seed: int) -> None:
    problem = random_problem(np.random.default_rng([seed, 11]), layers=5, types=2, max_limit=500)
    start = problem.runnable.argmax(axis=1).astype(np.int32)
    problem = problem.with_goal(Goal(min_throughput=0.0))
    plan = plan_of_placement(problem, problem.decode(start))
    rows = np.array(sorted(one_stretch_away(tuple(start.tolist()), problem.runnable)), dtype=np.int32)
    values = np.sort(ClosedForm(problem).score(rows).value)
    costs = [other.provisioning.usd_per_sample for other in alternatives(problem, plan) if other.provisioning]
    assert costs == pytest.approx(values[np.isfinite(values)][:5].tolist())


def small(limits: tuple[int, int] = (100, 100)) -> tuple[Profile, Cluster]:
    """Three layers whose seconds on two types call for another stage in the middle."""
    layers = [
        {"name": name, "costs": {"cpu": {"compute_s": 1.0, "sync_s": 0.0}, "gpu": {"compute_s": gpu_s, "sync_s": 0.0}}}
        for name, gpu_s in (("a", 2.0), ("b", 0.5), ("c", 2.0))
    ]
    types = {
        name: {"device": "cpu", "price_per_hour": 1.0, "limit": limit}
        for name, limit in zip(("cpu", "gpu"), limits, strict=True)
    }
    profile = {"format": "heterps.profile/1", "batch_size": 1000, "layers": layers}
    return Profile.from_dict(profile), Cluster.from_dict({"types": types})


def test_a_layer_inside_a_stage_opens_stages_of_its_own() -> None:
    problem = Problem(*small(), Goal(min_throughput=10_000.0))
    plan = plan_of_placement(problem, ["cpu"] * 3)
    best = others(problem, plan)[0]
    assert (best.change, best.placement) == ("b on gpu", ("cpu", "gpu", "cpu"))
    assert best.provisioning is not None
    assert best.provisioning.units == (10, 5, 10)


def test_others_are_ordered_by_what_the_goal_asks_for_and_the_infeasible_come_last() -> None:
    slow = Problem(*small(limits=(100, 10)), Goal(min_throughput=10_000.0))
    costs = [other.provisioning and other.provisioning.usd_per_sample for other in others(slow, plan_of(slow))]
    assert costs[-1] is None
    assert costs[:-1] == sorted(cost for cost in costs if cost is not None)
    fast = Problem(*small(limits=(100, 10)), Goal(samples=1e6, budget_usd=100.0))
    speeds = [other.provisioning.throughput for other in others(fast, plan_of(fast)) if other.provisioning]
    assert speeds == sorted(speeds, reverse=True)
    assert len(set(speeds)) > 1


def plan_of(problem: Problem) -> Plan:
    return plan_of_placement(problem, ["cpu"] * problem.layers)
