"""Which plan to run: the cheapest over the job's cluster if this machine can run it, else the best for this machine.

The hardware here is paid for whether it works or not, so the best plan for it is the fastest one, unless the job names
it as its cluster.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from heterps.catalog import Catalog
from heterps.errors import Infeasible
from heterps.job import Job
from heterps.loop.here import cluster_here, missing
from heterps.loop.measuring import cluster_of_job
from heterps.plan import Cluster, Plan
from heterps.profile.assemble import assemble
from heterps.profile.measurement import Measurement
from heterps.schedule.goal import Goal
from heterps.schedule.infeasible import NO_MONEY_LIMIT_USD
from heterps.schedule.methods import AUTO
from heterps.schedule.objective import ClosedForm
from heterps.schedule.planner import OnProgress, breakdown, make_plan, plan_of_placement
from heterps.schedule.problem import Problem
from heterps.schedule.search import Settings

CUT_SHARE = 0.05
"""What a plan of more stages must be better by, to be run here. Assumed."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan and the problem it solves."""

    problem: Problem
    plan: Plan

    def stage_seconds(self) -> list[float]:
        """Predicted seconds of each stage's work for one step."""
        batch = self.problem.profile.batch_size
        return [stage.compute_s * batch for stage in breakdown(self.problem, self.plan).stages]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run, and what to rent."""

    here: Planned
    """The plan for this machine; the same as `wanted` if that runs here."""
    wanted: Planned | None
    """The cheapest plan over the job's cluster; None if the job names none, or no plan meets the goal."""
    lacking: dict[str, int]
    """Type -> units of `wanted` that this machine lacks."""
    infeasible: Infeasible | None = None
    """Why there is no plan over the job's cluster."""


def choose(
    job: Job, measured: Measurement, *, catalog: Catalog, seed: int = 0, on_progress: OnProgress | None = None
) -> Choice:
    """Plans the job: over its cluster if it names one, and for this machine.

    Raises:
        Infeasible: if the job's goal cannot be met over its own cluster, and that is this machine.
    """
    settings = Settings(seed=seed)
    cluster = cluster_of_job(job, catalog)
    wanted, infeasible, lacking = None, None, {}
    if cluster is not None:
        problem = make_problem(job, measured, cluster, catalog)
        try:
            wanted = Planned(
                problem, make_plan(problem, method=job.plan.method, settings=settings, on_progress=on_progress)
            )
        except Infeasible as error:  # its remedies are named as options of `heterps plan`; here they are keys
            infeasible = Infeasible(
                re.sub(r"--([a-z-]+)", lambda word: f"goal.{word[1].replace('-', '_')}", str(error))
            )
        else:
            lacking = missing(wanted.plan, cluster, measured.hardware, catalog)
            if not lacking:
                simple = simplest(wanted) if job.plan.method == AUTO else wanted
                return Choice(simple, simple, {})
    return Choice(best_here(job, measured, catalog=catalog, settings=settings), wanted, lacking, infeasible)


def best_here(
    job: Job,
    measured: Measurement,
    *,
    catalog: Catalog,
    settings: Settings = Settings(),  # noqa: B008
) -> Planned:
    """The fastest plan for this machine; of those as fast, the cheapest.

    Its goal, which a plan keeps, is the throughput that it reaches.
    """
    cluster = cluster_here(measured.hardware, measured.links, catalog, prices=cluster_of_job(job, catalog))
    free = _in_mode(job, Goal(samples=1.0, budget_usd=NO_MONEY_LIMIT_USD))
    problem = Problem(assemble(measured, cluster, catalog=catalog), cluster, free)
    fastest = simplest(Planned(problem, make_plan(problem, method="exact", settings=settings))).plan
    as_fast = _in_mode(job, Goal(min_throughput=fastest.predicted.throughput * (1 - 1e-9)))
    problem = problem.with_goal(as_fast)
    plan = make_plan(problem, method="exact", settings=settings)
    if len(plan.stages) > len(fastest.stages):
        plan = plan_of_placement(problem, fastest.placement)
    return Planned(problem, plan)


def make_problem(job: Job, measured: Measurement, cluster: Cluster, catalog: Catalog) -> Problem:
    """The job's goal over a cluster. Without a goal, the least cost per sample at any throughput."""
    profile = assemble(measured, cluster, catalog=catalog)
    return Problem(profile, cluster, stated_goal(job), cluster_source="the job's cluster")


def stated_goal(job: Job) -> Goal:
    """The job's goal, in its mode. Without one, any throughput will do."""
    stated = {key: value for key, value in (job.goal.model_dump() if job.goal else {}).items() if value is not None}
    return _in_mode(job, Goal(**(stated or {"min_throughput": 0.0})))


def simplest(planned: Planned) -> Planned:
    """The plan with the fewest stages among those within `CUT_SHARE` of the given one, if it has more than two.

    A cut costs what the closed form does not count: handing over, and on a GPU the graph that a whole stage is recorded
    as. Looks at plans of one and of two stages.
    """
    problem, plan = planned.problem, planned.plan
    if len(plan.stages) == 1:
        return planned
    objective, types = ClosedForm(problem), range(problem.types)
    ones = [[first] * problem.layers for first in types]
    twos = [
        [first] * cut + [second] * (problem.layers - cut)
        for first in types for second in types if first != second for cut in range(1, problem.layers)
    ]  # fmt: skip
    most = objective.score(problem.encode(plan.placement)).value[0] * (1 + CUT_SHARE)
    for placements in (ones, twos) if len(plan.stages) > 2 else (ones,):
        some = np.array(placements, dtype=np.int32).reshape(len(placements), problem.layers)
        values = objective.score(some).value
        if len(values) and values.min() <= most:
            placement = problem.decode(some[int(values.argmin())])
            return Planned(problem, plan_of_placement(problem, placement))
    return planned


def _in_mode(job: Job, goal: Goal) -> Goal:
    train = job.train
    return replace(goal, mode="sync", micro_batches=train.micro_batches) if train.mode == "sync" else goal
