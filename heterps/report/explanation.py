"""A plan explained: every stage's times, the alternatives, and other ways to choose its units."""

from __future__ import annotations

import json
from dataclasses import asdict

from heterps.plan import Plan
from heterps.report.tables import against, format_change, plain_console, stage_table, table, totals
from heterps.schedule.alternatives import others
from heterps.schedule.objective import Provisioning
from heterps.schedule.planner import breakdown
from heterps.schedule.problem import Problem
from heterps.schedule.provision import provision_exact, provision_newton, provision_ratio
from heterps.units import MILLION, format_seconds, format_share

RATIO = "1:8"


def show_explanation(problem: Problem, plan: Plan) -> None:
    """Prints the breakdown, the alternatives and the provisionings."""
    console = plain_console()
    console.print(stage_table(problem, plan))
    console.print(totals(plan))
    got = breakdown(problem, plan)
    times = table("\nTime a sample", "stage", "compute", "communication", "larger", "idle")
    for i, stage in enumerate(got.stages):
        times.add_row(str(i), format_seconds(stage.compute_s), format_seconds(stage.communication_s), stage.binds,
                      format_share(stage.idle))  # fmt: skip
    console.print(times)
    figures = [*(["samples/s"] if problem.goal.fastest else []), "$/M samples", "against this plan"]
    moves = table("\nNext best alternatives", "one stretch of layers changed", *figures)
    for other in others(problem, plan):
        moves.add_row(other.change, *_figures(problem, plan, other.provisioning))
    console.print(moves)
    units = table("\nUnits for this placement", "method", "units", "server", *figures, left=2)
    for name, made in _provisionings(problem, plan).items():
        chosen = [" ".join(map(str, made.units)), str(made.server_units)] if made else ["–", "–"]
        units.add_row(name, *chosen, *_figures(problem, plan, made))
    console.print(units)


def explanation_json(problem: Problem, plan: Plan) -> str:
    """The same as a JSON object."""
    got = breakdown(problem, plan)
    return json.dumps(
        {
            "breakdown": {**asdict(got), "usd_per_sample": got.usd_per_sample},
            "alternatives": [
                {
                    "change": other.change,
                    "placement": list(other.placement),
                    "throughput": other.provisioning and other.provisioning.throughput,
                    "usd_per_million_samples": other.provisioning and other.provisioning.usd_per_sample * MILLION,
                }
                for other in others(problem, plan)
            ],
            "provisioning": {
                name: made and {"units": list(made.units), "server_units": made.server_units,
                                "throughput": made.throughput,
                                "usd_per_million_samples": made.usd_per_sample * MILLION}
                for name, made in _provisionings(problem, plan).items()
            },
        },
        indent=1,
    )  # fmt: skip


def _provisionings(problem: Problem, plan: Plan) -> dict[str, Provisioning | None]:
    return {
        "exact": provision_exact(problem, plan.placement),
        "paper (Newton, rounded up)": provision_newton(problem, plan.placement),
        f"static {RATIO}": provision_ratio(problem, plan.placement, RATIO),
    }


def _figures(problem: Problem, plan: Plan, made: Provisioning | None) -> list[str]:
    """Cost and difference to the plan; where speed is the goal, speed before them, and the difference in speed."""
    fast = problem.goal.fastest
    if made is None:
        return [*(["–"] if fast else []), "–", "cannot meet the goal"]
    speed = [f"{made.throughput:,.0f}"] if fast else []
    return [*speed, f"{made.usd_per_sample * MILLION:.5f}", format_change(against(problem, plan, made))]
