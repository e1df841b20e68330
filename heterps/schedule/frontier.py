"""The frontier of cost and throughput: for every throughput the least cost per sample, proved."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace

from heterps.errors import Infeasible
from heterps.plan import Plan
from heterps.schedule.goal import Goal
from heterps.schedule.infeasible import NO_MONEY_LIMIT_USD
from heterps.schedule.methods.exact import Exact
from heterps.schedule.objective import ClosedForm
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem
from heterps.schedule.search import Settings, search

RATE_SPAN = 100.0
"""Where no limit ends the frontier, it ends at so many times the dollars an hour of the cheapest plan, or of the
dearest unit if that is more."""


def frontier(problem: Problem, *, points: int = 24, settings: Settings = Settings()) -> Iterator[Plan]:  # noqa: B008
    """Yields plans from the cheapest of all to the fastest, each dearer and faster than the one before.

    No plan as fast as one of them costs less a sample, up to the gap that the plan itself proves.

    The frontier is a staircase. All its steps are yielded where it has few; else about `points` of them, evenly spread
    in the logarithm of throughput. The goal of the problem gives the mode and the money an hour; its throughput is the
    least one of interest.
    """
    goal = replace(problem.goal, samples=None, deadline_hours=None, budget_usd=None,
                   min_throughput=problem.goal.throughput_floor)  # fmt: skip
    plan = make_plan(problem.with_goal(goal), method="exact", settings=settings)
    yield plan
    if goal.max_usd_per_hour is None and any(kind.limit is None for kind in problem.cluster.types.values()):
        dearest = max(kind.price_per_hour for kind in problem.cluster.types.values())
        goal = replace(goal, max_usd_per_hour=RATE_SPAN * max(plan.predicted.usd_per_hour, dearest))
    start = plan.predicted.throughput
    top = _highest(problem.with_goal(goal), settings)
    spacing = (top / start) ** (1 / max(points - 1, 1)) if top > start else 1.0
    for i in range(1, points):
        at_least = max(plan.predicted.throughput * (1 + 1e-8), start * spacing**i * (1 - 1e-6))
        if at_least > top:
            return
        try:
            plan = make_plan(
                problem.with_goal(replace(goal, min_throughput=at_least)), method="exact", settings=settings
            )
        except Infeasible:
            return
        yield plan


def _highest(problem: Problem, settings: Settings) -> float:
    goal = problem.goal
    fastest = Goal(samples=1.0, budget_usd=NO_MONEY_LIMIT_USD, max_usd_per_hour=goal.max_usd_per_hour, mode=goal.mode,
                   micro_batches=goal.micro_batches)  # fmt: skip
    objective = ClosedForm(problem.with_goal(fastest))
    outcome = search(objective, Exact(objective, settings))
    return 1 / outcome.value if 0 < outcome.value < math.inf else 0.0


def frontier_json(plans: list[Plan]) -> str:
    """A JSON list of points: throughput, cost, proved bound, and the plan's stages."""
    points = [
        {
            **plan.to_dict()["predicted"],
            "lower_bound_usd_per_million_samples": plan.search.lower_bound_usd_per_million_samples,
            "optimal": plan.search.optimal,
            "placement": list(plan.placement),
            "stages": plan.to_dict()["stages"],
            "parameter_server": plan.to_dict()["parameter_server"],
        }
        for plan in plans
    ]
    return json.dumps({"points": points}, indent=1)
