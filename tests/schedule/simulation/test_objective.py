"""Planning on the simulator: units, scores, rations, and the contest between a method and its opponent."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from heterps.errors import Infeasible, InvalidInput
from heterps.plan import Plan
from heterps.schedule.cost import evaluate, stage_times, violations
from heterps.schedule.goal import Goal
from heterps.schedule.methods import make_method
from heterps.schedule.objective import ClosedForm
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem
from heterps.schedule.random_problems import random_problem
from heterps.schedule.search import Settings, search
from heterps.schedule.simulation import Conditions, Simulated, plan_simulated, simulate_plan, simulate_units
from heterps.schedule.simulation.loads import work_of
from tests.schedule.simulation.problems import any_placement, chain

WINDY = Conditions(jitter=0.2)


def problem_of(seed: int, *, layers: int = 6, types: int = 3, sync: bool = False, ask: float = 0.6) -> Problem:
    problem = random_problem(np.random.default_rng([seed, 31]), layers=layers, types=types, sync=sync)
    return problem.with_goal(replace(problem.goal, min_throughput=ask * problem.goal.throughput_floor))


def best_of(problem: Problem) -> np.ndarray:
    placement = make_plan(problem).placement
    return problem.encode(placement)[0]


@pytest.mark.parametrize("seed", range(12))
def test_without_chance_scores_are_the_closed_forms(seed: int) -> None:
    """Steady pipelines: the same money within the simulation's 2%, as the same units are within reach."""
    problem = problem_of(seed)
    placement = best_of(problem)
    closed = ClosedForm(problem).score(placement[None]).value[0]
    assert Simulated(problem, Conditions()).score(placement[None]).value[0] == pytest.approx(closed, rel=0.02)


@pytest.mark.parametrize("seed", range(12))
def test_units_meet_the_goal_in_simulation_and_keep_the_constraints(seed: int) -> None:
    problem = problem_of(seed, sync=seed % 2 == 1)
    placement = best_of(problem)
    objective = Simulated(problem, WINDY)
    found = objective.provision(placement)
    scores = objective.score(placement[None])
    if found is None:
        assert math.isinf(scores.value[0])
        assert scores.violation[0] > 0
        return
    assert scores.value[0] == found.usd_per_sample
    assert scores.violation[0] == 0
    named = problem.decode(placement)
    assert violations(problem.cluster, stage_times(problem.profile, problem.cluster, named), found.units,
                      found.server_units) == []  # fmt: skip
    got = simulate_units(problem, named, found.units, found.server_units, objective.conditions)
    assert got.throughput == pytest.approx(found.throughput)
    assert got.throughput >= problem.goal.throughput_floor * (1 - 1e-9)
    assert got.usd_per_million_samples / 1e6 == pytest.approx(found.usd_per_sample)


def test_jitter_asks_for_more_units_than_the_closed_form() -> None:
    problem = chain((8.0, 0.0), goal=Goal(min_throughput=60.0), limit=400)
    placement = np.zeros(1, dtype=np.int32)
    calm, windy = (Simulated(problem, Conditions(jitter=jitter)).provision(placement) for jitter in (0.0, 0.3))
    assert calm is not None
    assert windy is not None
    assert calm.units == (60,)
    # The fewest, by trying: a unit less is too slow.
    enough = [
        k
        for k in range(60, 200)
        if simulate_units(problem, ("t0",), [k], 0, Conditions(jitter=0.3, steps=32)).throughput >= 60
    ]
    assert enough[0] <= windy.units[0] <= enough[0] + 3


def test_an_infeasible_placement_says_how_far_off_it_is() -> None:
    tight = chain((8.0, 0.0), goal=Goal(min_throughput=60.0), limit=60)
    scores = [
        Simulated(tight, Conditions(jitter=jitter)).score(np.zeros((1, 1), dtype=np.int32)) for jitter in (0.1, 0.4)
    ]
    assert all(np.isinf(score.value[0]) for score in scores)
    assert 0 < scores[0].violation[0] < scores[1].violation[0]


def test_search_finds_the_best_of_all_placements() -> None:
    """Every placement simulated, against what the methods find; the shared link rules the closed form's optimum out."""
    problem = problem_of(5, layers=5, types=3)
    exact = best_of(problem)
    traffic = work_of(problem, exact).shared.sum() * problem.goal.throughput_floor / 1e9
    conditions = Conditions(jitter=0.2, shared_gbps=0.5 * traffic)
    every = np.array(list(itertools.product(range(3), repeat=5)), dtype=np.int32)
    every = every[problem.runnable[np.arange(5), every].all(axis=1)]
    whole = Simulated(problem, conditions)
    least = whole.score(every).value.min()
    assert np.isfinite(least)
    assert not np.isclose(whole.score(exact[None]).value[0], least, rtol=1e-3)
    for method in ("rl", "exact+local"):
        objective = Simulated(problem, conditions)
        outcome = search(objective, make_method(method, objective, Settings(rounds=100)))
        assert outcome.value == pytest.approx(least, rel=0.02), method


@pytest.mark.parametrize("method", ["rl", "exact+local", "genetic"])
def test_methods_stop_when_the_ration_is_spent(method: str) -> None:
    problem = problem_of(0, layers=12, types=4)
    objective = Simulated(problem, WINDY, simulations=60)
    outcome = search(objective, make_method(method, objective, Settings()))
    assert objective.simulations == 60
    assert objective.left == 0
    assert outcome.placement is not None
    assert objective.score(outcome.placement[None]).value[0] == outcome.value
    assert objective.simulations == 60


def test_what_was_not_simulated_when_the_ration_ended_is_infeasible() -> None:
    problem = problem_of(6, layers=12, types=4)
    objective = Simulated(problem, WINDY, simulations=0)
    scores = objective.score(best_of(problem)[None])
    assert np.isinf(scores.value[0])
    assert scores.violation[0] > 0


def test_a_placement_far_above_the_best_is_not_simulated() -> None:
    problem = problem_of(6, layers=12, types=4)
    objective = Simulated(problem, WINDY)
    best = objective.score(best_of(problem)[None]).value[0]
    spent = objective.simulations
    rng = np.random.default_rng(0)
    batch = np.stack([any_placement(rng, problem) for _ in range(50)])
    closed = ClosedForm(problem).score(batch).value
    dear = batch[(closed > 1.5 * best) & np.isfinite(closed)]
    assert len(dear) > 3
    assert (objective.score(dear).value > 1.3 * best).all()
    assert objective.simulations == spent


def test_failures_raise_the_cost() -> None:
    problem = problem_of(0)
    placement = best_of(problem)
    calm, failing = (
        Simulated(problem, Conditions(failures_per_unit_hour=rate)).score(placement[None]).value[0]
        for rate in (0.0, 1e-2)
    )
    assert failing > calm * 1.001


def test_a_contest_gives_both_plans_with_their_simulation() -> None:
    problem = problem_of(5, layers=8, types=3)
    contest = plan_simulated(problem, WINDY, settings=Settings(rounds=20), simulations=500)
    assert contest.entry is not None
    assert contest.opponent is not None
    assert (contest.entry.method, contest.opponent.method) == ("rl", "exact+local")
    assert contest.opponent.simulations <= contest.entry.simulations <= 500
    cheaper = min(contest.entry.simulation.usd_per_million_samples, contest.opponent.simulation.usd_per_million_samples)
    assert contest.chosen.simulation.usd_per_million_samples == cheaper
    for entry in (contest.entry, contest.opponent):
        plan = Plan.parse(entry.plan.to_text(), source="plan.json")
        written = plan.to_dict()["search"]["simulated"]
        again = simulate_plan(problem, plan, WINDY)
        assert written["usd_per_million_samples"] == again.usd_per_million_samples
        assert (written["jitter"], written["simulations"]) == (0.2, entry.simulations)
        units = [stage.units for stage in plan.stages]
        server = plan.parameter_server.units if plan.parameter_server else 0
        closed = evaluate(problem.profile, problem.cluster, plan.placement, units, server, goal=problem.goal)
        assert plan.predicted.throughput == pytest.approx(closed.throughput)
        assert not plan.search.optimal
        assert plan.search.lower_bound_usd_per_million_samples is None


def test_the_chosen_plan_is_the_methods_where_one_is_named() -> None:
    problem = problem_of(6, layers=8, types=3)
    contest = plan_simulated(problem, WINDY, method="greedy", settings=Settings(rounds=5), simulations=200)
    assert contest.chosen is contest.entry
    alone = plan_simulated(problem, WINDY, method="exact+local", simulations=200)
    assert alone.opponent is None


def test_goals_out_of_reach_are_explained() -> None:
    problem = chain((8.0, 0.0), goal=Goal(min_throughput=60.0), limit=60)
    with pytest.raises(Infeasible, match="in simulation, though the closed form has one") as caught:
        plan_simulated(problem, WINDY, settings=Settings(rounds=1), simulations=50)
    reached = float(str(caught.value).split("simulated reaches ")[1].split("/s")[0])
    asked = problem.with_goal(Goal(min_throughput=0.999 * reached))
    assert plan_simulated(asked, WINDY, settings=Settings(rounds=1), simulations=50).chosen
    with pytest.raises(Infeasible, match="highest reachable throughput"):
        plan_simulated(problem.with_goal(Goal(min_throughput=1e6)), WINDY)
    with pytest.raises(InvalidInput, match="needs a throughput"):
        plan_simulated(problem.with_goal(Goal(samples=1e6, budget_usd=5.0)), WINDY)
    with pytest.raises(InvalidInput, match="exact needs the closed-form"):
        plan_simulated(problem, WINDY, method="exact")


@pytest.mark.parametrize("seed", range(8))
def test_units_are_near_the_best_of_all(seed: int) -> None:
    """Every number of units up to 14 for two stages, simulated."""
    rng = np.random.default_rng([seed, 32])
    goal = Goal(min_throughput=float(rng.uniform(2, 6)))
    problem = chain(*[(float(rng.uniform(4, 12)), 0.0) for _ in range(2)], goal=goal, limit=14)
    conditions = Conditions(jitter=0.3, steps=32)
    found = Simulated(problem, conditions).provision(np.arange(2, dtype=np.int32))
    assert found is not None
    best = math.inf
    for units in itertools.product(range(1, 15), repeat=2):
        got = simulate_units(problem, ("t0", "t1"), units, 0, conditions)
        if got.throughput >= goal.throughput_floor:
            best = min(best, got.usd_per_million_samples / 1e6)
    assert best <= found.usd_per_sample * (1 + 1e-9)
    assert found.usd_per_sample <= best * 1.03


@pytest.mark.parametrize("seed", range(16))
def test_a_unit_more_or_less_does_not_help(seed: int) -> None:
    """A unit less for any stage, and one more for the busiest."""
    problem = problem_of(seed, layers=8)
    placement = best_of(problem)
    objective = Simulated(problem, WINDY)
    found = objective.provision(placement)
    if found is None:
        pytest.skip("limits leave no room for jitter")
    named, conditions = problem.decode(placement), objective.conditions
    stages = stage_times(problem.profile, problem.cluster, named)
    used = simulate_units(problem, named, found.units, found.server_units, conditions)
    busy = [max(stage.busy, stage.link_busy) for stage in used.stages]
    changes = [(s, -1) for s in range(len(busy))]
    if max(busy) > used.server_busy:
        changes.append((busy.index(max(busy)), 1))
    for s, more in changes:
        units = [k + more * (i == s) for i, k in enumerate(found.units)]
        if units[s] == 0 or violations(problem.cluster, stages, units, found.server_units):
            continue
        got = simulate_units(problem, named, units, found.server_units, conditions)
        cheaper = got.usd_per_million_samples / 1e6 < found.usd_per_sample * (1 - 1e-9)
        assert not cheaper or got.throughput < problem.goal.throughput_floor, (s, more, found.units)
