"""A plan explained: every stage's times, the alternatives, and other ways to choose its units."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console

from heterps.plan import Plan
from heterps.report.tables import stage_table, table, totals
from heterps.schedule.alternatives import others
from heterps.schedule.objective import Provisioning
from heterps.schedule.planner import breakdown
from heterps.schedule.problem import Problem
from heterps.schedule.provision import provision_exact, provision_newton, provision_ratio
from heterps.units import MILLION, format_seconds, format_share

RATIO = "1:8"


def show_explanation(problem: Problem, plan: Plan) -> None:
    """Prints the breakdown, the alternatives and the provisionings."""
    console = Console()
    console.print(stage_table(problem, plan))
    console.print(totals(plan))
    got = breakdown(problem, plan)
    times = table("\nTime a sample", "stage", "compute", "communication", "larger", "idle")
    for i, stage in enumerate(got.stages):
        times.add_row(str(i), format_seconds(stage.compute_s), format_seconds(stage.communication_s), stage.binds,
                      format_share(stage.idle))  # fmt: skip
    console.print(times)
    ours = plan.predicted.usd_per_million_samples
    moves = table("\nNext best alternatives", "change", "$/M samples", "against this plan")
    for other in others(problem, plan):
        moves.add_row(other.change, *_price(other.provisioning, ours))
    console.print(moves)
    units = table("\nUnits for this placement", "method", "units", "server", "$/M samples", "against this plan", left=2)
    for name, made in _provisionings(problem, plan).items():
        chosen = [" ".join(map(str, made.units)), str(made.server_units)] if made else ["–", "–"]
        units.add_row(name, *chosen, *_price(made, ours))
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
                    "usd_per_million_samples": other.provisioning and other.provisioning.usd_per_sample * MILLION,
                }
                for other in others(problem, plan)
            ],
            "provisioning": {
                name: made and {"units": list(made.units), "server_units": made.server_units,
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


def _price(made: Provisioning | None, ours: float) -> tuple[str, str]:
    if made is None:
        return "–", "cannot meet the goal"
    cost = made.usd_per_sample * MILLION
    return f"{cost:.5f}", f"{cost / ours - 1:+.2%}"
