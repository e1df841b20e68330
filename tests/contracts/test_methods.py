"""What every search method must keep, whatever it does inside."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heterps.errors import InvalidInput
from heterps.schedule.methods import METHODS, make_method
from heterps.schedule.objective import ClosedForm, Scores
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Placements, Problem
from heterps.schedule.random_problems import random_problem
from heterps.schedule.search import Settings, search
from tests.schedule.conftest import _seconds_of_work  # noqa: F401

QUICK = Settings(rounds=5, trials=20)
NAMES = [*METHODS, "only:t0", "auto"]


def problem_of(seed: int, *, layers: int = 6, types: int = 3, sync: bool = False) -> Problem:
    return random_problem(np.random.default_rng(seed), layers=layers, types=types, sync=sync)


@pytest.fixture(params=NAMES)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("seed", range(4))
def test_proposals_run_and_the_loop_keeps_the_best(method: str, seed: int) -> None:
    problem = problem_of(seed, sync=seed % 2 == 1)
    objective = ClosedForm(problem)
    seen: list[float] = []

    class Watched(ClosedForm):
        def score(self, placements: Placements, *, cutoff: float = np.inf) -> Scores:
            assert placements.dtype == np.int32
            assert placements.shape[1] == problem.layers
            assert problem.runnable[np.arange(problem.layers), placements].all()
            scores = super().score(placements, cutoff=cutoff)
            seen.extend(scores.value.tolist())
            return scores

    watched = Watched(problem)
    outcome = search(watched, make_method(method, watched, QUICK))
    assert outcome.evaluations == len(seen)
    if outcome.placement is None:
        assert all(map(math.isinf, seen))
        return
    assert outcome.value == min(seen)
    assert objective.score(outcome.placement[None]).value[0] == pytest.approx(outcome.value, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_gives_the_same_plan(method: str, seed: int) -> None:
    problem = problem_of(100 + seed)
    objective = ClosedForm(problem)
    settings = Settings(rounds=5, trials=20, seed=seed)
    first, second = (search(objective, make_method(method, objective, settings)) for _ in range(2))
    assert first.value == second.value
    assert np.array_equal(first.placement, second.placement)


def test_one_layer_and_one_type(method: str) -> None:
    problem = problem_of(7, layers=1, types=1)
    plan = make_plan(problem, method=method, settings=QUICK)
    assert plan.placement == ("t0",)
    assert plan.search.optimal


@pytest.mark.parametrize("seed", range(3))
def test_plans_name_their_bound_and_never_beat_it(method: str, seed: int) -> None:
    problem = problem_of(200 + seed)
    objective = ClosedForm(problem)
    if search(objective, make_method(method, objective, QUICK)).placement is None:
        pytest.skip("the baseline finds nothing on this problem")
    plan = make_plan(problem, method=method, settings=QUICK)
    bound = plan.search.lower_bound_usd_per_million_samples
    assert bound is not None
    assert bound <= plan.predicted.usd_per_million_samples * (1 + 1e-12)
    assert plan.search.optimal == (plan.predicted.usd_per_million_samples <= bound * (1 + 1e-6))
    assert plan.predicted.throughput >= problem.goal.throughput_floor * (1 - 1e-9)


def test_methods_take_any_objective() -> None:
    """A made-up objective that is no closed form: `auto` takes rl for it, and exact refuses."""
    problem = problem_of(5, layers=5, types=3)

    class Distance:
        closed_form = False

        def __init__(self) -> None:
            self.problem = problem

        def score(self, placements: Placements, *, cutoff: float = np.inf) -> Scores:
            wanted = np.array([2, 0, 1, 1, 0])
            return Scores(1.0 + (placements != wanted).sum(axis=1), np.zeros(len(placements)))

        def provision(self, placement: Placements) -> None:
            return None

    objective = Distance()
    outcome = search(objective, make_method("auto", objective, Settings(rounds=60)))
    assert outcome.value == 1.0
    with pytest.raises(InvalidInput, match="closed-form"):
        make_method("exact", objective, Settings())


def test_unknown_names_are_refused_with_a_hint() -> None:
    objective = ClosedForm(problem_of(1))
    with pytest.raises(InvalidInput, match="Did you mean 'genetic'"):
        make_method("genetics", objective, QUICK)
    with pytest.raises(InvalidInput, match="unknown type 'tpu'"):
        make_method("only:tpu", objective, QUICK)


def test_brute_force_refuses_with_the_count() -> None:
    objective = ClosedForm(problem_of(1, layers=20, types=4))
    with pytest.raises(InvalidInput, match=r"would try [\d,]+ placements"):
        make_method("brute-force", objective, QUICK)


@pytest.mark.parametrize("seed", [-1, 2**32, 1.5, True, "0"])
def test_seeds_that_are_none(seed: object) -> None:
    with pytest.raises(InvalidInput, match="seed is a whole number from 0 to 4294967295, not"):
        Settings(seed=seed)  # type: ignore[arg-type]
