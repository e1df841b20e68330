from __future__ import annotations

from typing import Any

import pytest

from heterps import catalog as catalogs
from heterps.errors import Infeasible
from heterps.job import Job
from heterps.loop.here import cluster_here, missing, profiled_types
from heterps.loop.measuring import cluster_of_job, cluster_of_plan, job_samples
from heterps.loop.planning import best_here, choose, simplest
from heterps.schedule.cost import evaluate
from tests.loop.measurements import made_up

CATALOG = catalogs.load()
TWO_CORES = {"types": {name: {"device": "cpu", "price_per_hour": 0.04, "limit": 1} for name in ("left", "right")}}


def job(**sections: Any) -> Job:
    return Job.from_dict({"model": {"name": "ctrdnn"}, "data": {"source": "synthetic", "rows": 1000}, **sections})


def test_without_a_cluster_all_cores_work() -> None:
    choice = choose(job(), made_up(), catalog=CATALOG)
    assert choice.wanted is None
    assert [(stage.type, stage.units) for stage in choice.here.plan.stages] == [("cpu", 4)]


def test_a_cluster_of_this_machine_is_planned_for_and_runs_here() -> None:
    choice = choose(job(cluster=TWO_CORES, train={"mode": "async"}), made_up(), catalog=CATALOG)
    assert choice.wanted is choice.here
    assert choice.lacking == {}
    placed = set(choice.here.plan.placement)
    assert placed <= {"left", "right"}


def test_what_is_not_here_is_to_be_rented() -> None:
    choice = choose(job(cluster=["cpu:480", "h200:8"], goal={"min_throughput": 2e6}), made_up(), catalog=CATALOG)
    assert choice.wanted is not None
    assert choice.lacking
    assert choice.wanted.plan.search.optimal
    assert choice.wanted.plan.predicted.throughput >= 2e6
    assert set(choice.here.plan.placement) == {"cpu"}
    assert all(stage.units <= 4 for stage in choice.here.plan.stages)


def test_a_goal_that_nothing_meets_is_told_and_this_machine_still_planned_for() -> None:
    choice = choose(job(cluster=TWO_CORES, goal={"min_throughput": 1e9}), made_up(), catalog=CATALOG)
    assert isinstance(choice.infeasible, Infeasible)
    assert choice.wanted is None
    assert choice.here.plan.predicted.throughput > 0


def test_the_fastest_plan_is_for_this_machine() -> None:
    """Against every number of cores."""
    planned = best_here(job(), made_up(), catalog=CATALOG)
    problem = planned.problem
    by_units = [
        evaluate(problem.profile, problem.cluster, ["cpu"] * 4, [units], 0, goal=problem.goal).throughput
        for units in range(1, 5)
    ]
    assert planned.plan.predicted.throughput == pytest.approx(max(by_units))


def test_a_stage_that_gains_next_to_nothing_is_not_cut_off() -> None:
    """The last layer takes 1% of the GPU's time: less than handing over costs."""
    measured = made_up((0.004, 0.030, 0.020, 0.0001), gpu_s=(0.0002, 0.0004, 0.0004, 0.00001))
    assert {stage.type for stage in best_here(job(train={"mode": "async"}), measured, catalog=CATALOG).plan.stages} == {
        "h200"
    }


def test_a_cut_that_pays_stays() -> None:
    """Rows are slow on this GPU: two stages are more than twice as fast."""
    measured = made_up((0.0004, 0.030, 0.020, 0.001), gpu_s=(0.0040, 0.0004, 0.0004, 0.00001))
    plan = best_here(job(train={"mode": "async"}), measured, catalog=CATALOG).plan
    assert [stage.type for stage in plan.stages] == ["cpu", "h200"]
    assert simplest(best_here(job(train={"mode": "async"}), measured, catalog=CATALOG)).plan.stages == plan.stages


def test_sync_plans_count_the_draining() -> None:
    choice = choose(job(train={"micro_batches": 4}), made_up(), catalog=CATALOG)
    assert choice.here.plan.inputs.mode == "sync"
    assert choice.here.plan.inputs.micro_batches == 4


def test_missing_counts_cores_of_all_types_together() -> None:
    measured = made_up(cores=2)
    cluster = cluster_of_job(job(cluster={"types": {n: {"device": "cpu", "price_per_hour": 1.0, "limit": 2}
                                                    for n in ("left", "right")}}), CATALOG)  # fmt: skip
    assert cluster is not None
    choice = choose(job(cluster=cluster.to_dict(), train={"mode": "async"}, goal={"min_throughput": 1024 / 0.03}),
                    measured, catalog=CATALOG)  # fmt: skip
    plan = (choice.wanted or choice.here).plan
    used = sum(stage.units for stage in plan.stages)
    lacking = missing(plan, cluster, measured.hardware, CATALOG)
    assert (sum(lacking.values()) > 0) == (used > 2)


def test_the_cluster_of_this_machine() -> None:
    cluster = cluster_here(made_up(gpu_s=(1e-3,) * 4).hardware, made_up().links, CATALOG)
    assert {name: kind.limit for name, kind in cluster.types.items()} == {"cpu": 4, "h200": 1}
    assert cluster.types["h200"].bandwidth_gbps == 400.0
    assert cluster.parameter_server is None


def test_types_to_profile() -> None:
    measured = made_up()
    assert list(profiled_types(job(), measured.hardware, None, CATALOG).types) == ["cpu"]
    assert list(profiled_types(job(cluster=["t4", "h200:8"]), measured.hardware, None, CATALOG).types) == [
        "cpu",
        "t4",
        "h200",
    ]
    named = profiled_types(job(), measured.hardware, None, CATALOG, names=["cpu", "v100:4"])
    assert {name: kind.limit for name, kind in named.types.items()} == {"cpu": 4, "v100": 4}


def test_the_cluster_of_a_plan_holds_it() -> None:
    plan = best_here(job(), made_up(), catalog=CATALOG).plan
    assert cluster_of_plan(plan).types["cpu"].limit == 4


@pytest.mark.parametrize(
    ("train", "samples"),
    [({"steps": 10, "batch_size": 64}, 640.0), ({"epochs": 2}, 1800.0), ({}, 900.0)],
    ids=str,
)
def test_samples_of_a_job(train: dict[str, int], samples: float) -> None:
    assert job_samples(job(train=train)) == pytest.approx(samples)
    assert job_samples(job(data={"source": "criteo", "path": "x"})) is None


def test_the_jobs_own_prices_hold_for_this_machine_too() -> None:
    cluster = {"types": {"cpu": {"device": "cpu", "price_per_hour": 0.5, "limit": 480}}}
    plan = best_here(job(cluster=cluster), made_up(), catalog=CATALOG).plan
    assert plan.types["cpu"].price_per_hour == 0.5


def test_remedies_are_named_as_the_job_names_them() -> None:
    goal = {"samples": 1e9, "budget_usd": 1e-6}
    choice = choose(job(cluster=TWO_CORES, goal=goal), made_up(), catalog=CATALOG)
    assert "goal.budget_usd" in str(choice.infeasible)
    assert "--" not in str(choice.infeasible)
