"""The next best placements beside a plan's, each with its own best units."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heterps.plan import Plan
from heterps.schedule.cost import stage_runs
from heterps.schedule.neighbours import neighbours
from heterps.schedule.objective import ClosedForm, Provisioning
from heterps.schedule.problem import Problem


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another placement: what it changes in words, and its units; None if it cannot meet the goal."""

    change: str
    placement: tuple[str, ...]
    provisioning: Provisioning | None


def alternatives(problem: Problem, plan: Plan, *, most: int = 5) -> list[Alternative]:
    """The cheapest placements one move away from the plan's, best first."""
    objective = ClosedForm(problem)
    placement = problem.encode(plan.placement)[0]
    moves = neighbours(placement, problem.runnable)
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
    """Single types, then the cheapest `most` placements one move away; each placement once, the plan's own left out."""
    distinct: dict[tuple[str, ...], Alternative] = {}
    for other in [*single_types(problem), *alternatives(problem, plan, most=most)]:
        distinct.setdefault(other.placement, other)
    distinct.pop(plan.placement, None)
    return list(distinct.values())


def single_types(problem: Problem) -> list[Alternative]:
    """Everything on one type, for each type that can run every layer."""
    objective = ClosedForm(problem)
    found = []
    for t, name in enumerate(problem.names):
        if problem.runnable[:, t].all():
            row = np.full(problem.layers, t, dtype=np.int32)
            found.append(Alternative(f"everything on {name}", problem.decode(row), objective.provision(row)))
    return found


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
