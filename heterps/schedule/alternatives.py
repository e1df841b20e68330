"""The next best placements beside a plan's, each with its own best units."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from heterps.plan import Plan
from heterps.schedule.cost import stage_runs
from heterps.schedule.neighbours import stretches
from heterps.schedule.objective import ClosedForm, Provisioning
from heterps.schedule.problem import Problem


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another placement: what it changes in words, and its units; None if it cannot meet the goal."""

    change: str
    placement: tuple[str, ...]
    provisioning: Provisioning | None


def alternatives(problem: Problem, plan: Plan, *, most: int = 5) -> list[Alternative]:
    """The best placements that differ from the plan's in one stretch of layers, best first; those that meet the goal.

    The best is the cheapest a sample, or the fastest where the goal is speed within a budget. A better one may differ
    in several places; in long chains not every stretch is tried (see `stretches`).
    """
    objective = ClosedForm(problem)
    moves = stretches(problem.encode(plan.placement)[0], problem.runnable)
    if not len(moves):
        return []
    values = objective.score(moves).value
    order = [i for i in np.argsort(values, kind="stable")[:most] if np.isfinite(values[i])]
    found = []
    for i in order:
        names = problem.decode(moves[i])
        found.append(Alternative(_difference(problem, plan.placement, names), names, objective.provision(moves[i])))
    return found


def others(problem: Problem, plan: Plan, *, most: int = 5) -> list[Alternative]:
    """Single types and the best `most` placements that differ in one stretch of layers, best first.

    Each placement comes once, and the plan's own is left out. Single types that cannot meet the goal come last.
    """
    distinct: dict[tuple[str, ...], Alternative] = {}
    for other in [*single_types(problem), *alternatives(problem, plan, most=most)]:
        distinct.setdefault(other.placement, other)
    distinct.pop(plan.placement, None)
    return sorted(distinct.values(), key=lambda other: _value(problem, other.provisioning))


def single_types(problem: Problem) -> list[Alternative]:
    """Everything on one type, for each type that can run every layer."""
    objective = ClosedForm(problem)
    found = []
    for t, name in enumerate(problem.names):
        if problem.runnable[:, t].all():
            row = np.full(problem.layers, t, dtype=np.int32)
            found.append(Alternative(f"everything on {name}", problem.decode(row), objective.provision(row)))
    return found


def _value(problem: Problem, made: Provisioning | None) -> float:
    """What the goal minimises: dollars a sample, or seconds a sample; infinite for what cannot meet it."""
    if made is None:
        return math.inf
    return 1 / made.throughput if problem.goal.fastest else made.usd_per_sample


def _difference(problem: Problem, before: tuple[str, ...], after: tuple[str, ...]) -> str:
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    layers = problem.profile.layers
    parts = []
    for first, last, name in stage_runs(after):
        inside = [i for i in changed if first <= i <= last]
        if inside:
            a, b = layers[inside[0]].name, layers[inside[-1]].name
            parts.append(f"{a} on {name}" if a == b else f"{a}..{b} on {name}")
    return ", ".join(parts)
