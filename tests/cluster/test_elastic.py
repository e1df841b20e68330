"""Plans for what is left of a cluster: pure functions on plans and machines."""

from __future__ import annotations

import random

import pytest

from heterps.api import load_problem
from heterps.loop.replanning import Replanner
from heterps.plan import Plan
from heterps.runtime.cluster.elastic import Placing
from heterps.schedule.goal import Goal
from heterps.schedule.planner import make_plan as planned
from tests.runtime.plans import make_plan


def node(cpus: float = 0.0, gpus: float = 0.0, **more: float) -> dict[str, float]:
    return {"CPU": cpus, "GPU": gpus, **more}


def units(plan: Plan | None) -> list[int]:
    assert plan is not None
    return [stage.units for stage in plan.stages]


def test_a_plan_that_fits_stays():
    plan, placing = make_plan(4, (2,), units=[4, 2]), Placing(tables=1)
    assert placing.smaller(plan, [node(4), node(3)]) == plan


def test_fewer_machines_first_mean_other_processes():
    """Four cores of a stage fit on two machines of three as two processes."""
    plan, placing = make_plan(4, units=4), Placing(tables=1)
    assert placing.smaller(plan, [node(3), node(3)]) == plan
    assert placing.layout(plan, [node(3), node(3)]).stages[0].shares == (2, 2)


def test_units_shrink_in_proportion():
    plan, placing = make_plan(4, (2,), units=[8, 4]), Placing(tables=1, replicas=None)
    assert units(placing.smaller(plan, [node(7)])) == [4, 2]
    assert units(placing.smaller(plan, [node(3)])) == [1, 1]
    assert placing.smaller(plan, [node(2)]) is None  # two stages and a server need three cores


def test_only_what_is_scarce_shrinks():
    data = make_plan(4, (2,), units=[6, 4]).to_dict()
    data["types"]["beta"]["device"] = "cuda"
    plan, placing = Plan.from_dict(data), Placing(tables=1)
    assert units(placing.smaller(plan, [node(8, 2), node(8, 1)])) == [6, 3]
    assert units(placing.smaller(plan, [node(4, 4)])) == [3, 4]


def test_a_resource_of_the_types_name_counts():
    plan, placing = make_plan(4, units=4), Placing(tables=1)
    assert units(placing.smaller(plan, [node(8, alpha=3)])) == [3]
    assert placing.units_left(plan, [node(8, alpha=3), node(2)]) == {"alpha": 3, "beta": 9, "gamma": 9}


def test_servers_shrink_too_but_not_those_that_were_asked_for():
    data = make_plan(4, units=4).to_dict()
    data["parameter_server"] = {"type": "alpha", "units": 4}
    plan = Plan.from_dict(data)
    smaller = Placing(tables=1).smaller(plan, [node(4)])
    assert smaller is not None
    assert smaller.parameter_server is not None
    assert (units(smaller), smaller.parameter_server.units) == ([2], 2)
    assert units(Placing(tables=1, shards=3).smaller(plan, [node(4)])) == [1]
    assert Placing(tables=1, shards=4).smaller(plan, [node(4)]) is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_left_the_smaller_plan_fits_and_is_no_larger(seed: int):
    rng = random.Random(seed)
    placing = Placing(tables=1)
    plan = make_plan(6, (2, 4), units=[rng.randint(1, 9) for _ in range(3)])
    nodes = [node(rng.randint(0, 6)) for _ in range(3)]
    smaller = placing.smaller(plan, nodes)
    if smaller is None:
        assert sum(one["CPU"] for one in nodes) < 4 + 3  # rounding down on three machines may waste some
        return
    assert placing.lacks(placing.layout(smaller, nodes), nodes) is None
    assert all(less <= more for less, more in zip(units(smaller), units(plan), strict=True))
    full = placing.lacks(placing.layout(plan, nodes), nodes) is None
    assert full == (smaller == plan)


def test_the_planner_makes_the_best_of_what_is_left():
    problem = load_problem("ctrdnn", "paper", Goal(min_throughput=500_000.0))
    plan, replanner = planned(problem), Replanner(problem)
    there = dict.fromkeys(problem.names, 10_000)
    assert units(replanner(there)) == units(plan)
    few = replanner({"cpu": 30, "v100": 1})
    assert few is not None
    used = {name: sum(stage.units for stage in few.stages if stage.type == name) for name in few.types}
    assert all(count <= {"cpu": 30, "v100": 1}[name] for name, count in used.items())
    assert few.predicted.throughput < 500_000  # out of reach: the fastest there is
    assert replanner({"cpu": 0, "v100": 0}) is None


def test_what_the_planner_makes_is_taken_if_it_fits():
    plan, other = make_plan(4, (2,), units=[8, 4]), make_plan(4, units=3)
    placing = Placing(tables=1, replicas=(2, 1))
    asked: list[object] = []

    def plan_for(left: object) -> Plan:
        asked.append(left)
        return other

    assert placing.smaller(plan, [node(4)], plan_for) == other
    assert asked == [{"alpha": 3, "beta": 3, "gamma": 3}]
    assert units(placing.smaller(plan, [node(3)], plan_for)) == [2]
    assert units(placing.smaller(plan, [node(4)], lambda _: None)) == [2, 1]
