"""The frontier of cost and throughput: for every throughput the least cost per sample, proved."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from heterps.errors import Infeasible
from heterps.plan import Plan
from heterps.schedule.goal import Goal
from heterps.schedule.infeasible import NO_MONEY_LIMIT_USD
from heterps.schedule.methods.exact import Exact
from heterps.schedule.objective import ClosedForm
from heterps.schedule.planner import OPTIMAL_GAP, make_plan
from heterps.schedule.problem import Problem
from heterps.schedule.search import Settings, search
from heterps.units import MILLION

RATE_SPAN = 100.0
"""Where no limit ends the frontier, it ends at so many times the dollars an hour of the cheapest plan, or of the
dearest unit if that is more."""

NEXT = 1 + 1e-8
"""A plan this many times as fast as another is on another step of the frontier."""


def frontier(problem: Problem, *, points: int = 24, settings: Settings = Settings()) -> Iterator[Plan]:  # noqa: B008
    """Yields plans from the cheapest of all to the fastest, each dearer and faster than the one before.

    No plan as fast as one of them costs less a sample, up to the gap that the plan itself proves.

    The frontier is a staircase. All its steps are yielded where there are at most `points`; else `points` of them,
    spread over the logarithms of throughput and cost. The goal of the problem gives the mode and the money an hour;
    its throughput is the least one of interest.
    """
    goal = replace(problem.goal, samples=None, deadline_hours=None, budget_usd=None,
                   min_throughput=problem.goal.throughput_floor)  # fmt: skip
    cheapest = make_plan(problem.with_goal(goal), method="exact", settings=settings)
    if goal.max_usd_per_hour is None and any(kind.limit is None for kind in problem.cluster.types.values()):
        dearest = max(kind.price_per_hour for kind in problem.cluster.types.values())
        goal = replace(goal, max_usd_per_hour=RATE_SPAN * max(cheapest.predicted.usd_per_hour, dearest))
    stairs = _Stairs(problem.with_goal(goal), settings)
    yield from stairs.steps(cheapest, points) if points > 1 else [cheapest]


@dataclass(frozen=True, slots=True)
class _Gap:
    """Two plans of the frontier between which there may be others: faster than `left`, slower than `floor`.

    `right` is the cheapest plan that is as fast as `floor` (samples a second). `walk`: what lies between is sparse.
    """

    left: Plan
    right: Plan
    floor: float
    walk: bool = False

    @property
    def is_open(self) -> bool:
        """False if no plan can be between: a plan there would be faster than `left` and cheaper than `right`."""
        return not _as_cheap(self.right, self.left) and self.floor > self.left.predicted.throughput * NEXT

    @property
    def size(self) -> float:
        """Logarithms of throughput and of cost that the gap spans, added up."""
        left, right = self.left.predicted, self.right.predicted
        spans = self.floor / left.throughput * (right.usd_per_million_samples / left.usd_per_million_samples)
        return math.log(spans)


@dataclass(frozen=True, slots=True)
class _Stairs:
    """The search for the steps: always in the largest gap, and one exact solution at a time.

    Half-way into a gap there is a new step as long as steps are dense. Where it is the right one again they are sparse,
    and are walked one by one from the left: that finds each, and ends where there is none.
    """

    problem: Problem
    settings: Settings

    def steps(self, cheapest: Plan, points: int) -> list[Plan]:
        """The cheapest plan, the fastest, and steps between: at most `points`, two or more."""
        found = [cheapest]
        with suppress(Infeasible):  # a search that ran out of time; what was found is no worse for it
            for plan in self._explore(cheapest):
                # One too many tells that there are more than `points`: until then each may turn out to be no step.
                if len(_rising([*found, plan])) > points:
                    break
                found.append(plan)
        return _rising(found)

    def _explore(self, cheapest: Plan) -> Iterator[Plan]:
        """The fastest plan, then one of the largest gap each time, until no gap is left."""
        top = self._highest() * (1 - OPTIMAL_GAP)
        if top <= cheapest.predicted.throughput:
            return
        fastest = self._as_fast_as(top)
        yield fastest
        gaps = [_Gap(cheapest, fastest, top)]
        while gaps := [gap for gap in gaps if gap.is_open]:
            gap = max(gaps, key=lambda gap: gap.size)
            plan, smaller = self._split(gap)
            yield plan
            gaps = [other for other in gaps if other is not gap] + smaller

    def _split(self, gap: _Gap) -> tuple[Plan, list[_Gap]]:
        """A plan in a gap, and what gaps that leaves."""
        start = gap.left.predicted.throughput
        floor = start * NEXT if gap.walk else math.sqrt(start * gap.floor)
        plan = self._as_fast_as(floor)
        if _as_cheap(plan, gap.left):
            # Equally cheap plans may be many, such as all multiples of one. Only the fastest of them is a step.
            plan = self._as_fast_as(max(floor, self._highest(gap.left) * (1 - OPTIMAL_GAP)))
            return plan, [_Gap(plan, gap.right, gap.floor, gap.walk)]
        walk = gap.walk or _as_cheap(gap.right, plan)
        return plan, [_Gap(gap.left, plan, floor, walk), _Gap(plan, gap.right, gap.floor, walk)]

    def _as_fast_as(self, floor: float) -> Plan:
        """The cheapest plan of at least so many samples a second."""
        goal = replace(self.problem.goal, min_throughput=floor)
        return make_plan(self.problem.with_goal(goal), method="exact", settings=self.settings)

    def _highest(self, as_cheap_as: Plan | None = None) -> float:
        """The most samples a second, at any cost a sample or at that of a plan; 0 if nothing limits it."""
        goal = self.problem.goal
        usd = NO_MONEY_LIMIT_USD
        if as_cheap_as is not None:
            usd = as_cheap_as.predicted.usd_per_million_samples / MILLION * (1 + OPTIMAL_GAP)
        fastest = Goal(samples=1.0, budget_usd=usd, max_usd_per_hour=goal.max_usd_per_hour, mode=goal.mode,
                       micro_batches=goal.micro_batches)  # fmt: skip
        objective = ClosedForm(self.problem.with_goal(fastest))
        outcome = search(objective, Exact(objective, self.settings))
        return 1 / outcome.value if 0 < outcome.value < math.inf else 0.0


def _as_cheap(plan: Plan, other: Plan) -> bool:
    """True if a plan costs no more a sample than another, as far as proofs go."""
    return plan.predicted.usd_per_million_samples <= other.predicted.usd_per_million_samples * (1 + OPTIMAL_GAP)


def _rising(plans: list[Plan]) -> list[Plan]:
    """The plans than which none is faster and as cheap, from the slowest to the fastest."""
    kept: list[Plan] = []
    for plan in sorted(plans, key=lambda plan: plan.predicted.throughput, reverse=True):
        if not kept or not _as_cheap(kept[-1], plan):
            kept.append(plan)
    return kept[::-1]


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
