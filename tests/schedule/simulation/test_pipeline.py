"""The simulated pipeline: by hand, against a slow reference, against the closed form, and what jitter does to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps import _native
from heterps.errors import InvalidInput
from heterps.schedule.cost import evaluate
from heterps.schedule.goal import Goal
from heterps.schedule.planner import make_plan
from heterps.schedule.random_problems import random_problem
from heterps.schedule.simulation import Conditions, simulate_plan, simulate_units, what_it_costs
from heterps.schedule.simulation.loads import measure, work_of
from tests.schedule.simulation.problems import any_placement, chain, names
from tests.schedule.simulation.reference import simulate as slow

CALM = Conditions()


def sync(micro_batches: int) -> Goal:
    return Goal(min_throughput=0.0, mode="sync", micro_batches=micro_batches)


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_slow_reference(seed: int) -> None:
    rng = np.random.default_rng([seed, 21])
    stages = int(rng.integers(1, 6))
    loads = rng.uniform(0.1, 1, (stages, 2, 5)) * (rng.random((stages, 2, 5)) < 0.7)
    loads[:, :, 0] += 0.05
    loads[:, :, 3:] /= 2 * stages
    shape = {"micro_batches": int(rng.integers(1, 6)), "staleness": int(rng.integers(0, 4)),
             "warmup": int(rng.integers(0, 3)), "steps": int(rng.integers(1, 8))}  # fmt: skip
    seconds, *_ = _native.simulate(
        loads, units=[1.0] * stages, keys=list(range(stages)), server_units=1.0, jitter=0.0, seed=0, **shape
    )
    assert seconds == pytest.approx(slow(loads, **shape), rel=1e-9)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 4), (2, 1), (3, 4), (5, 16)])
def test_balanced_stages_that_drain_lose_the_closed_forms_factor(stages: int, micro_batches: int) -> None:
    problem = chain(*[(0.8, 0.0)] * stages, goal=sync(micro_batches))
    got = simulate_units(problem, names(problem), [1] * stages, 0, CALM)
    assert got.throughput == pytest.approx(10 * micro_batches / (micro_batches + stages - 1), rel=1e-9)
    assert got.staleness == 0
    assert got.stages[0].busy == pytest.approx(micro_batches / (micro_batches + stages - 1), rel=1e-9)


def test_unbalanced_stages_drain_less_than_the_factor_says() -> None:
    """By hand: two micro-batches of 4 samples, 0.3 s forward and 0.6 s back through the first stage, a tenth of that
    through the second. Forward 0.0-0.3-0.6 (the second stage done at 0.63), the first one's way back 0.39-... waits for
    the units until 0.6, then 0.6-1.2-1.8.
    """
    problem = chain((1.8, 0.0), (0.18, 0.0), goal=sync(2))
    got = simulate_units(problem, names(problem), [1, 1], 0, CALM)
    assert got.throughput == pytest.approx(8 / 1.8, rel=1e-9)
    predicted = evaluate(problem.profile, problem.cluster, names(problem), [1, 1], 0, goal=problem.goal).throughput
    assert predicted == pytest.approx(8 / 1.8 * 2 / 3)


def closed_and_simulated(seed: int, *, optimal: bool) -> tuple[float, float]:
    rng = np.random.default_rng([seed, 22])
    problem = random_problem(rng, layers=int(rng.integers(1, 17)), types=int(rng.integers(1, 6)))
    if optimal:
        plan = make_plan(problem)
        return plan.predicted.throughput, simulate_plan(problem, plan, CALM).throughput
    placement = any_placement(rng, problem)
    units = [int(np.exp(rng.uniform(0, 7))) for _ in range(work_of(problem, placement).stages)]
    server = int(rng.integers(1, 100))
    named = problem.decode(placement)
    got = evaluate(problem.profile, problem.cluster, named, units, server, goal=problem.goal)
    return got.throughput, simulate_units(problem, named, units, server, CALM).throughput


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), optimal=st.booleans())
def test_async_without_chance_is_the_closed_form(seed: int, optimal: bool) -> None:
    """Of any units, and of plans whose stages are all nearly the slowest."""
    predicted, simulated = closed_and_simulated(seed, optimal=optimal)
    assert simulated == pytest.approx(predicted, rel=0.02)


def test_a_pipeline_with_too_few_steps_in_flight_waits() -> None:
    problem = chain(*[(0.8, 0.0)] * 6)
    full = simulate_units(problem, names(problem), [1] * 6, 0, CALM)
    assert full.throughput == pytest.approx(10, rel=0.01)
    drained = simulate_units(problem, names(problem), [1] * 6, 0, Conditions(staleness=0, micro_batches=2))
    assert drained.throughput == pytest.approx(10 * 2 / 7, rel=1e-6)
    one_ahead = simulate_units(problem, names(problem), [1] * 6, 0, Conditions(staleness=1, micro_batches=2))
    assert drained.throughput * 1.3 < one_ahead.throughput < full.throughput * 0.9


def test_bounds_and_busy_shares_name_the_slowest() -> None:
    problem = chain((0.8, 0.2), (0.2, 0.4), server=0.1)
    by_units = simulate_units(problem, names(problem), [1, 1], 1, CALM)
    assert by_units.bounds == "stage 0, computing"
    assert by_units.stages[0].busy == pytest.approx(1, abs=0.01)
    assert by_units.stages[1].busy == pytest.approx(0.25, rel=0.02)
    assert by_units.stages[1].link_busy == pytest.approx(0.5, rel=0.02)
    assert by_units.stages[1].waiting == pytest.approx(0.75, rel=0.02)
    assert by_units.server_busy == pytest.approx(0.25, rel=0.02)
    by_link = simulate_units(problem, names(problem), [4, 1], 1, CALM)
    assert by_link.bounds == "stage 1, link"
    assert by_link.throughput == pytest.approx(8 / 0.4, rel=0.01)
    by_server = simulate_units(problem, names(problem), [40, 40], 1, CALM)
    assert by_server.bounds == "parameter server"
    assert by_server.throughput == pytest.approx(8 / 0.2, rel=0.01)
    assert simulate_units(problem, names(problem), [4, 1], 0, CALM).throughput == 0


def test_shared_links_carry_every_cut_once_each_way_and_the_parameters() -> None:
    """A batch of 8 samples sends 2 · 1e9 bytes over each of the two cuts, 32e9 bits, and each layer's parameters take
    0.5 s on links of 10 Gb/s: 15e9 bits for the three.
    """
    problem = chain(*[(0.01, 0.5)] * 3, output_bytes=1e9, bandwidth_gbps=10.0)
    units = [100] * 3
    alone = simulate_units(problem, names(problem), units, 0, CALM)
    assert alone.shared_busy == 0
    got = simulate_units(problem, names(problem), units, 0, Conditions(shared_gbps=20.0))
    assert got.bounds == "shared links"
    assert got.throughput == pytest.approx(8 * 20e9 / 47e9, rel=0.01)
    plenty = simulate_units(problem, names(problem), units, 0, Conditions(shared_gbps=1e5))
    assert plenty.throughput == pytest.approx(alone.throughput, rel=0.01)


@pytest.mark.parametrize(("units", "jitter"), [(1, 0.3), (7, 0.1), (64, 0.3), (5000, 0.2)])
def test_a_stage_waits_for_its_slowest_unit(units: int, jitter: float) -> None:
    """One stage is always busy, so its mean time is that of the largest of so many lognormal factors."""
    problem = chain((0.8 * units, 0.0))
    got = simulate_units(problem, ("t0",), [units], 0, Conditions(jitter=jitter, steps=3000))
    drawn = np.random.default_rng(5).normal(-(jitter**2) / 2, jitter, (2000, units)).max(axis=1)
    assert got.throughput == pytest.approx(10 / np.exp(drawn).mean(), rel=0.02)


def test_jitter_costs_more_with_more_units_and_spares_serial_work() -> None:
    problem = random_problem(np.random.default_rng(3), layers=6, types=2)
    placement = problem.decode(any_placement(np.random.default_rng(3), problem))
    runs = len({*placement}) and work_of(problem, problem.encode(placement)[0]).stages
    calm = simulate_units(problem, placement, [50] * runs, 50, CALM).throughput
    lost = [
        1 - simulate_units(problem, placement, [50] * runs, 50, Conditions(jitter=jitter)).throughput / calm
        for jitter in (0.05, 0.2, 0.5)
    ]
    assert 0 < lost[0] < lost[1] < lost[2]


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    problem = chain((0.8, 0.1), (0.7, 0.2))
    first, again, other = (
        simulate_units(problem, names(problem), [8, 8], 0, Conditions(jitter=0.3, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first.throughput != other.throughput
    assert first.throughput == pytest.approx(other.throughput, rel=0.03)


def test_rungs_lead_from_the_closed_form_to_the_simulation() -> None:
    problem = random_problem(np.random.default_rng(8), layers=8, types=3)
    plan = make_plan(problem)
    conditions = Conditions(jitter=0.2, failures_per_unit_hour=0.01, shared_gbps=1e6, seed=4)
    rungs = what_it_costs(problem, plan, conditions)
    assert [rung.name for rung in rungs] == ["closed form", "pipeline", "shared links", "jitter", "failures"]
    assert rungs[0].throughput == pytest.approx(plan.predicted.throughput)
    assert rungs[-1].throughput == simulate_plan(problem, plan, conditions).throughput
    left = np.prod([1 - rung.costs for rung in rungs])
    assert left == pytest.approx(rungs[-1].throughput / rungs[0].throughput)


def test_thousands_of_units_and_many_stages() -> None:
    """Nothing in a simulation grows with the units."""
    rng = np.random.default_rng(4)
    problem = random_problem(rng, layers=64, types=4)
    placement = any_placement(rng, problem)
    work = work_of(problem, placement)
    got = measure(problem, work, [100_000] * work.stages, 100_000, Conditions(jitter=0.3, steps=20))
    assert got.throughput > 0


def test_a_type_that_cannot_run_a_layer_is_refused() -> None:
    problem = chain((0.8, 0.1), (0.7, 0.2))
    with pytest.raises(InvalidInput, match="layer 'layer1' is placed on 't0'"):
        simulate_units(problem, ("t0", "t0"), [1], 0, CALM)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"jitter": -0.1}, "--jitter is -0.1; it must be 0 or more"),
        ({"jitter": float("nan")}, "--jitter"),
        ({"shared_gbps": 0.0}, "--shared-gbps is 0; it must be above 0"),
        ({"failures_per_unit_hour": -1.0}, "--failures is -1"),
        ({"checkpoint_every_s": 0.0}, "--checkpoint-every-s"),
        ({"micro_batches": 0}, "--micro-batches is 0; it must be 1 or more"),
        ({"staleness": -1}, "--staleness"),
        ({"staleness": 10**9}, "--staleness is 1e[+]09; it must be 0 or more, at most 1000"),
    ],
)
def test_impossible_conditions_are_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Conditions(**wrong)  # type: ignore[arg-type]
