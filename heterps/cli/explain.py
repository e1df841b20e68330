"""`heterps explain`: what a plan costs where, and what else there is."""

from __future__ import annotations

from typing import Annotated

import typer

from heterps.cli import options as o


def explain(
    plan_file: Annotated[str, typer.Argument(metavar="PLAN", help="plan.json.")],
    profile: o.Profile = None,
    cluster_file: o.ClusterFile = None,
    model: o.Model = None,
    cluster: o.ClusterName = None,
    json: o.Json = False,
) -> None:
    """Break a plan down by stage, and price the next best alternatives."""
    from heterps.plan import Plan
    from heterps.schedule.planner import check_fresh, goal_of

    plan = Plan.load(plan_file)
    problem = o.make_problem(profile, cluster_file, model, cluster, goal_of(plan))
    check_fresh(plan, problem, source=plan_file)
    if json:
        from heterps.report.explanation import explanation_json

        typer.echo(explanation_json(problem, plan))
        return
    from heterps.report.explanation import show_explanation

    show_explanation(problem, plan)
