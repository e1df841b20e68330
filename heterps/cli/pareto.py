"""`heterps pareto`: the frontier of cost and throughput."""

from __future__ import annotations

from typing import Annotated

import typer

from heterps.cli import options as o


def pareto(
    profile: o.Profile = None,
    cluster_file: o.ClusterFile = None,
    model: o.Model = None,
    cluster: o.ClusterName = None,
    min_throughput: o.MinThroughput = None,
    max_usd_per_hour: o.MaxUsdPerHour = None,
    points: Annotated[int, typer.Option(min=1, help="At most so many points.")] = 24,
    mode: o.Mode = "async",
    micro_batches: o.MicroBatches = None,
    json: o.Json = False,
    plot: o.Plot = None,
) -> None:
    """Trace the frontier: the least cost per sample for every throughput, proved."""
    goal = o.make_goal(
        min_throughput=min_throughput or 0.0, max_usd_per_hour=max_usd_per_hour, mode=mode, micro_batches=micro_batches
    )
    problem = o.make_problem(profile, cluster_file, model, cluster, goal)
    from heterps.schedule.frontier import frontier, frontier_json

    with o.progress("tracing the frontier", quiet=json):
        plans = list(frontier(problem, points=points))
    if plot is not None:
        from heterps.report.plots import plot_frontier

        plot_frontier(plans, plot)
    if json:
        typer.echo(frontier_json(plans))
        return
    from heterps.report.tables import show_frontier

    show_frontier(problem, plans)
    if plot is not None:
        typer.echo(f"plot written to {plot}")
