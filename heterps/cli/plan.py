"""`heterps plan`: the cheapest plan for a goal."""

from __future__ import annotations

from typing import Annotated

import typer

from heterps.cli import options as o


def plan(
    profile: o.Profile = None,
    cluster_file: o.ClusterFile = None,
    model: o.Model = None,
    cluster: o.ClusterName = None,
    min_throughput: o.MinThroughput = None,
    samples: o.Samples = None,
    deadline_hours: o.DeadlineHours = None,
    budget_usd: o.BudgetUsd = None,
    max_usd_per_hour: o.MaxUsdPerHour = None,
    method: Annotated[
        str, typer.Option(help="auto, exact, rl, rl-rnn, brute-force, bayesian, genetic, greedy, heuristic, only:TYPE.")
    ] = "auto",
    mode: o.Mode = "async",
    micro_batches: o.MicroBatches = None,
    seed: o.Seed = 0,
    out: Annotated[str | None, typer.Option(metavar="plan.json", help="Write the plan to a file.")] = None,
    json: o.Json = False,
) -> None:
    """Find the placement and provisioning that meet a goal for the least money."""
    goal = o.make_goal(
        min_throughput=min_throughput, samples=samples, deadline_hours=deadline_hours, budget_usd=budget_usd,
        max_usd_per_hour=max_usd_per_hour, mode=mode, micro_batches=micro_batches,
    )  # fmt: skip
    problem = o.make_problem(profile, cluster_file, model, cluster, goal)
    from heterps.schedule.planner import make_plan
    from heterps.schedule.search import Settings

    with o.progress(f"planning ({method})", quiet=json) as report:
        made = make_plan(problem, method=method, settings=Settings(seed=seed), on_progress=report)
    if out is not None:
        made.save(out)
    if json:
        typer.echo(made.to_text(), nl=False)
        return
    from heterps.report.tables import show_plan

    show_plan(problem, made)
    if out is not None:
        typer.echo(f"written to {out}")
