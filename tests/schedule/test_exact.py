"""`exact` against brute force, at scale, and on goals beyond a throughput."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heterps._native import Graph
from heterps.errors import Infeasible, InvalidInput
from heterps.plan import Cluster, Profile
from heterps.schedule.goal import Goal
from heterps.schedule.methods import bounding, program
from heterps.schedule.methods.brute_force import BruteForce
from heterps.schedule.methods.exact import Exact
from heterps.schedule.methods.paths import Paths
from heterps.schedule.objective import ClosedForm
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem
from heterps.schedule.random_problems import random_problem
from heterps.schedule.search import Outcome, Settings, search
from heterps.units import SECONDS_PER_HOUR


def solve(problem: Problem) -> Outcome:
    objective = ClosedForm(problem)
    return search(objective, Exact(objective, Settings()))


def brute(problem: Problem) -> Outcome:
    objective = ClosedForm(problem)
    return search(objective, BruteForce(objective, Settings()))


def small_problem(seed: int) -> Problem:
    rng = np.random.default_rng([seed, 3])
    layers, types = [(int(rng.integers(1, 8)), 2), (int(rng.integers(1, 6)), 3)][seed % 2]
    return random_problem(
        rng, layers=layers, types=types, max_limit=int(rng.choice([4, 30, 500])), sync=rng.random() < 0.3
    )


@pytest.mark.parametrize("block", range(10))
def test_equals_brute_force(block: int) -> None:
    for seed in range(30 * block, 30 * (block + 1)):
        assert_equals_brute_force(seed)


def assert_equals_brute_force(seed: int) -> None:
    problem = small_problem(seed)
    found, reference = solve(problem), brute(problem)
    assert found.value == pytest.approx(reference.value, rel=1e-6), seed
    assert found.proved <= reference.value * (1 + 1e-9), seed
    assert found.proved >= found.value * (1 - 1e-6), seed


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[int]:
    """Wraps a function; the list grows by one at each call."""
    calls: list[int] = []
    original = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return original(*args, **options)

    monkeypatch.setattr(owner, name, wrapped)
    return calls


def test_equals_brute_force_where_the_integer_program_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounding, "EFFORT", -1)
    calls = counted(monkeypatch, bounding, "solve")
    for seed in range(150):
        assert_equals_brute_force(seed)
    assert len(calls) > 20


def test_equals_brute_force_where_branching_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are not raised first, and no program helps: parts, their prices and the server's units must do."""
    monkeypatch.setattr(bounding, "FIRST_ASCENTS", 0)
    monkeypatch.setattr(bounding, "ASCENTS", 0)
    monkeypatch.setattr(bounding, "PROGRAM_STAGES", 0)
    calls = counted(monkeypatch, bounding, "_branch")
    for seed in range(300, 420):
        assert_equals_brute_force(seed)
    assert len(calls) > 100


@pytest.mark.parametrize("seed", range(40))
def test_branching_and_the_integer_program_agree(seed: int) -> None:
    """Where brute force has no chance: the cheapest path at a throughput, above the least and up to what is allowed."""
    problem = random_problem(np.random.default_rng([seed, 11]), layers=20, types=5, max_limit=40)
    least = problem.goal.throughput_floor
    for low in (least, 1.3 * least):
        interval = bounding.Interval(low, low, 0, Graph(problem.tables), np.zeros(problem.types + 1))
        cutoff = 1.5 * max(interval.relax().bound, solve(problem).value * SECONDS_PER_HOUR)
        found = interval.branch(cutoff, 10**9)
        expected = program.solve(
            problem, interval.narrowed(cutoff).graph, low, low, max_stages=0, cutoff=cutoff, seconds=150
        )
        assert found.complete
        assert found.bound == pytest.approx(min(expected.bound, cutoff), rel=1e-6)


def test_no_prices_bound_better_than_the_best() -> None:
    """Neither those of ascents nor others nearby; and limits are priced in many of the problems."""
    priced = 0
    for seed in range(80):
        rng = np.random.default_rng([seed, 23])
        problem = random_problem(rng, layers=20, types=5, max_limit=40)
        if problem.server_type >= 0:
            continue
        low = problem.goal.throughput_floor
        point = bounding.Interval(low, low, 0, Graph(problem.tables), np.zeros(problem.types + 1))
        cutoff = 1.5 * max(point.relax().bound, solve(problem).value * SECONDS_PER_HOUR)
        prices = Paths(problem, point.graph, low, low).best_prices(1 / cutoff)
        assert prices is not None, seed
        bound = replace(point, prices=prices).relax().bound
        *_, raised = bounding.tighten(problem, point, lambda: cutoff)  # noqa: B023
        assert isinstance(raised, bounding.Bounded)
        others = [raised.interval.prices, *(prices * rng.uniform(0.5, 1.5, prices.shape) for _ in range(20))]
        for other in others:
            assert replace(point, prices=other).relax().bound <= bound * (1 + 1e-7), seed
        priced += bool(prices.any())
    assert priced > 10


def test_a_program_finds_plans_where_branching_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that is far too dear is all that is known, and branching is not given time."""
    monkeypatch.setattr(bounding, "PROBE", -1)
    better = 0
    for seed in range(20):
        problem = random_problem(np.random.default_rng([seed, 11]), layers=20, types=5, max_limit=40)
        low, cheapest = problem.goal.throughput_floor, solve(problem).value * SECONDS_PER_HOUR
        whole = bounding.Interval(low, math.inf, 0, Graph(problem.tables), np.zeros(problem.types + 1))
        for step in bounding.tighten(problem, whole, lambda: 2 * cheapest):  # noqa: B023
            if isinstance(step, bounding.Bounded):
                better += step.interval.searched
            else:
                last = step
        if isinstance(step, bounding.Bounded) and step.interval.searched:
            assert ClosedForm(problem).score(last[None, :]).value[0] * SECONDS_PER_HOUR < 1.2 * cheapest, seed
    assert better > 3


def served_problem(seed: int, types: int) -> Problem:
    """Layers that differ most in the work they cause on a dear server, under limits that bind."""
    rng = np.random.default_rng([seed, 17])
    names = [f"t{i}" for i in range(types)]
    layers = [
        {"name": f"l{i}", "costs": {
            name: {"compute_s": rng.uniform(0.5, 3), "sync_s": 0.0, "ps_s": rng.uniform(0.05, 1.0)} for name in names}}
        for i in range(30)
    ]  # fmt: skip
    offers = {
        name: {"device": "cpu", "price_per_hour": rng.uniform(1, 3), "limit": int(rng.integers(40, 80)) // types}
        for name in names
    }
    offers["server"] = {"device": "cpu", "price_per_hour": rng.uniform(4, 8)}
    return Problem(
        Profile.from_dict({"format": "heterps.profile/1", "batch_size": 1, "layers": layers}),
        Cluster.from_dict({"types": offers, "parameter_server": "server"}),
        Goal(min_throughput=1.0),
    )


@pytest.mark.parametrize("types", [3, 4])
def test_branching_on_the_servers_units_loses_no_path(types: int) -> None:
    """With one throughput and a dear server, parts are split by its whole units; the halves must leave none out."""
    for seed in range(40):
        problem = served_problem(seed, types)
        point = bounding.Interval(1.0, 1.0, 0, Graph(problem.tables), np.zeros(problem.types + 1))
        found = point.branch(2 * point.relax().bound, 10**8)
        assert found.complete, seed
        cutoff = found.bound * (1 - 1e-6)
        *_, raised = bounding.tighten(problem, point, lambda: cutoff)  # noqa: B023
        assert isinstance(raised, bounding.Bounded)
        left = raised.interval.narrowed(cutoff).graph
        cheaper = program.solve(problem, left, 1.0, 1.0, max_stages=0, cutoff=cutoff, seconds=150)
        assert cheaper.bound >= cutoff, seed


@pytest.mark.parametrize("seed", range(60))
def test_fastest_within_a_budget_equals_brute_force(seed: int) -> None:
    problem = small_problem(seed)
    cheapest = solve(problem).value
    goal = Goal(
        samples=1e6, budget_usd=cheapest * 1e6 * (1.0 + 0.1 * (seed % 7)), mode=problem.goal.mode,
        micro_batches=problem.goal.micro_batches, max_usd_per_hour=500.0,
    )  # fmt: skip
    asked = problem.with_goal(goal)
    found, reference = solve(asked), brute(asked)
    assert found.value == pytest.approx(reference.value, rel=2e-6)
    assert found.proved <= reference.value * (1 + 1e-9)


@pytest.mark.parametrize(("layers", "types"), [(20, 64), (40, 16), (200, 8)])
def test_proves_large_problems(layers: int, types: int) -> None:
    """Proof within the gap; times belong to the benchmark."""
    problem = random_problem(np.random.default_rng([layers, types]), layers=layers, types=types)
    outcome = solve(problem)
    assert outcome.proved >= outcome.value * (1 - 1e-6)


@pytest.mark.parametrize("seed", range(30))
def test_infeasible_goals_name_a_reachable_throughput(seed: int) -> None:
    problem = small_problem(seed)
    fastest = Goal(samples=1.0, budget_usd=1e30, mode=problem.goal.mode, micro_batches=problem.goal.micro_batches)
    best = solve(problem.with_goal(fastest)).value
    if best == 0:
        pytest.skip("nothing limits this one")
    ask = {"mode": problem.goal.mode, "micro_batches": problem.goal.micro_batches}
    with pytest.raises(Infeasible, match=r"highest reachable throughput is ([\d.e+-]+)") as caught:
        make_plan(problem.with_goal(Goal(min_throughput=1.001 / best, **ask)))  # type: ignore[arg-type]
    assert "What stops it" in str(caught.value)
    reachable = float(str(caught.value).split("throughput is ")[1].split()[0])
    assert reachable == pytest.approx(1 / best, rel=1e-3)
    assert make_plan(problem.with_goal(Goal(min_throughput=reachable, **ask)))  # type: ignore[arg-type]


def test_money_caps_and_unbounded_goals() -> None:
    problem = random_problem(np.random.default_rng(12), layers=5, types=2)
    plan = make_plan(problem)
    cap = plan.predicted.usd_per_hour
    goal = Goal(min_throughput=problem.goal.min_throughput, max_usd_per_hour=cap)
    assert make_plan(problem.with_goal(goal)).predicted.usd_per_hour <= cap * (1 + 1e-9)
    with pytest.raises(Infeasible, match="budget"):
        make_plan(problem.with_goal(Goal(samples=1e6, budget_usd=1e-9)))


def test_nothing_limits_the_throughput() -> None:
    profile = {"format": "heterps.profile/1", "batch_size": 1, "layers": [
        {"name": "a", "costs": {"cpu": {"compute_s": 0.5, "sync_s": 0.0}}},
        {"name": "b", "costs": {"cpu": {"compute_s": 0.25, "sync_s": 0.0}, "gpu": {"compute_s": 0.01, "sync_s": 0.0}}},
    ]}  # fmt: skip
    types = {"cpu": {"device": "cpu", "price_per_hour": 1.0}, "gpu": {"device": "cuda", "price_per_hour": 7.7}}
    made = Profile.from_dict(profile), Cluster.from_dict({"types": types})
    with pytest.raises(InvalidInput, match="nothing limits the throughput"):
        make_plan(Problem(*made, Goal(samples=1e6, budget_usd=1e6)))
    # Cheapest: the fractional cost is flat, so it is approached, never reached; the gap still closes.
    plan = make_plan(Problem(*made, Goal(min_throughput=10.0)))
    assert plan.search.optimal
    assert plan.predicted.usd_per_million_samples == pytest.approx((0.5 + 0.077) / 3600 * 1e6, rel=1e-5)


def test_round_numbers_are_not_rounded_up() -> None:
    """0.4096 s for 4096 samples is 10,000 a second a unit, so 20,000 takes two units, not three."""
    profile = Profile.from_dict({"format": "heterps.profile/1", "batch_size": 4096, "layers": [
        {"name": "a", "costs": {"cpu": {"compute_s": 0.4096, "sync_s": 0.0}}}]})  # fmt: skip
    cluster = Cluster.from_dict({"types": {"cpu": {"device": "cpu", "price_per_hour": 1.0, "limit": 2}}})
    plan = make_plan(Problem(profile, cluster, Goal(min_throughput=20000.0)))
    assert [stage.units for stage in plan.stages] == [2]
    assert math.isclose(plan.predicted.throughput, 20000.0)
