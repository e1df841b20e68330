"""All methods on one problem, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from heterps.errors import Infeasible, InvalidInput
from heterps.plan import Plan
from heterps.schedule.methods import METHODS, method_names
from heterps.schedule.planner import OnProgress, make_plan, prove
from heterps.schedule.problem import Problem
from heterps.schedule.search import Settings
from heterps.units import MILLION


@dataclass(frozen=True, slots=True)
class Row:
    """One method: its plan, or why there is none; `gap` is the share above the proved bound (see `Comparison`)."""

    method: str
    plan: Plan | None
    gap: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rows in the order of the methods. `lower_bound` is what is proved to be the least cost (dollars a million
    samples), or, for the goal of the fastest plan within a budget, the least time (seconds a million samples).
    """  # noqa: D205

    rows: tuple[Row, ...]
    lower_bound: float
    fastest: bool

    def to_json(self) -> str:
        """A JSON object: the bound, and a list with each method's cost, gap, seconds and evaluations."""
        methods = []
        for row in self.rows:
            entry: dict[str, object] = {"method": row.method}
            if row.plan is None:
                entry["reason"] = row.reason
            else:
                entry |= {
                    "usd_per_million_samples": row.plan.predicted.usd_per_million_samples,
                    "usd_per_hour": row.plan.predicted.usd_per_hour,
                    "throughput": row.plan.predicted.throughput,
                    "gap": row.gap,
                    "optimal": row.plan.search.optimal,
                    "seconds": row.plan.search.seconds,
                    "evaluations": row.plan.search.evaluations,
                    "placement": list(row.plan.placement),
                }
            methods.append(entry)
        unit = "lower_bound_seconds_per_million_samples" if self.fastest else "lower_bound_usd_per_million_samples"
        return json.dumps({unit: self.lower_bound, "methods": methods}, indent=1)


def compare_methods(
    problem: Problem, *, methods: Sequence[str] | None, settings: Settings, on_progress: OnProgress | None = None
) -> Comparison:
    """Runs the methods, by default all that the cluster has.

    A method that finds no plan gets a row that says so; one that refuses the problem does too, unless it was asked for.

    Raises:
        Infeasible: if no plan meets the goal at all.
    """
    proof = prove(problem, settings=settings)
    rows = []
    for name in methods or method_names(problem.names):
        try:
            plan = make_plan(problem, method=name, settings=settings, proof=proof, on_progress=on_progress)
        except Infeasible:
            rows.append(Row(name, None, None, "finds no plan that meets the goal"))
        except InvalidInput as error:
            if methods is not None and name not in METHODS:
                raise
            rows.append(Row(name, None, None, str(error)))
        else:
            per_million = plan.predicted.usd_per_million_samples / MILLION
            value = 1 / plan.predicted.throughput if problem.goal.fastest else per_million
            rows.append(Row(name, plan, max(0.0, value / proof.lower - 1), ""))
    return Comparison(tuple(rows), proof.lower * MILLION, problem.goal.fastest)
