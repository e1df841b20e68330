"""`heterps compare`: all methods side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from heterps.cli import options as o


def compare(
    profile: o.Profile = None,
    cluster_file: o.ClusterFile = None,
    model: o.Model = None,
    cluster: o.ClusterName = None,
    min_throughput: o.MinThroughput = None,
    samples: o.Samples = None,
    deadline_hours: o.DeadlineHours = None,
    budget_usd: o.BudgetUsd = None,
    max_usd_per_hour: o.MaxUsdPerHour = None,
    methods: Annotated[
        list[str] | None, typer.Option(help="Comma-separated, or given several times; all if left out.")
    ] = None,
    mode: o.Mode = "async",
    micro_batches: o.MicroBatches = None,
    seed: o.Seed = 0,
    json: o.Json = False,
    plot: o.Plot = None,
) -> None:
    """Compare the methods: cost, gap to the proved optimum, seconds, evaluations."""
    goal = o.make_goal(
        min_throughput=min_throughput, samples=samples, deadline_hours=deadline_hours, budget_usd=budget_usd,
        max_usd_per_hour=max_usd_per_hour, mode=mode, micro_batches=micro_batches,
    )  # fmt: skip
    problem = o.make_problem(profile, cluster_file, model, cluster, goal)
    from heterps.schedule.comparison import compare_methods
    from heterps.schedule.search import Settings

    names = [name.strip() for given in methods or () for name in given.split(",") if name.strip()]
    with o.progress("comparing", quiet=json) as report:
        result = compare_methods(problem, methods=names or None, settings=Settings(seed=seed), on_progress=report)
    if plot is not None:
        from heterps.report.plots import plot_comparison

        plot_comparison(result, plot)
    if json:
        typer.echo(result.to_json())
        return
    from heterps.report.tables import show_comparison

    show_comparison(problem, result)
    if plot is not None:
        typer.echo(f"plot written to {plot}")
