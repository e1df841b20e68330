"""`heterps simulate`: a plan event by event, with jitter, shared links and failures."""

from __future__ import annotations

import json as json_module
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli import options as o
from heterps.errors import InvalidInput

if TYPE_CHECKING:
    from heterps.schedule.problem import Problem
    from heterps.schedule.simulation import Point, Rung, Simulation


def simulate(
    plan_file: Annotated[str, typer.Argument(metavar="PLAN", help="plan.json.")],
    profile: o.Profile = None,
    cluster_file: o.ClusterFile = None,
    model: o.Model = None,
    cluster: o.ClusterName = None,
    jitter: o.Jitter = 0.0,
    shared_gbps: o.SharedGbps = None,
    failures: o.FailuresPerUnitHour = 0.0,
    restart_s: Annotated[float, typer.Option(help="Seconds from a failure until training goes on.")] = 300.0,
    checkpoint_every_s: Annotated[float, typer.Option(help="Seconds of training between checkpoints.")] = 600.0,
    checkpoint_s: Annotated[float, typer.Option(help="Seconds that a checkpoint stops training.")] = 0.0,
    hours: Annotated[float, typer.Option(help="Length of the run in which failures are drawn.")] = 24.0,
    micro_batches: Annotated[
        int | None, typer.Option(help="Micro-batches a step; the plan's if left out, or 4.")
    ] = None,
    staleness: Annotated[
        int | None, typer.Option(help="Steps that may run ahead; as many as keep stages busy if left out, 0 for sync.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps simulated event by event, once the pipeline is full.")] = 200,
    units: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Efficiency on other numbers of units, such as 1,10,100,1000."),
    ] = None,
    fixed_server: Annotated[
        bool, typer.Option("--fixed-server", help="With --units: the server stays as the plan has it.")
    ] = False,
    grow_batch: Annotated[
        bool, typer.Option("--grow-batch", help="With --units: the batch grows with them, the first has the profile's.")
    ] = False,
    seed: o.Seed = 0,
    json: o.Json = False,
    plot: o.Plot = None,
) -> None:
    """Simulate a plan: what jitter, shared links, draining and failures cost, beside the closed form.

    With --units: how the plan scales, and what limits it.
    """
    from heterps.plan import Plan
    from heterps.schedule.planner import check_fresh, goal_of
    from heterps.schedule.simulation import Conditions, scale, simulate_plan, what_it_costs

    plan = Plan.load(plan_file)
    problem = o.make_problem(profile, cluster_file, model, cluster, goal_of(plan))
    check_fresh(plan, problem, source=plan_file)
    conditions = Conditions(
        jitter=jitter, shared_gbps=shared_gbps, failures_per_unit_hour=failures, restart_s=restart_s,
        checkpoint_every_s=checkpoint_every_s, checkpoint_s=checkpoint_s, hours=hours, micro_batches=micro_batches,
        staleness=staleness, steps=steps, seed=seed,
    )  # fmt: skip
    if units is not None:
        points = scale(
            problem, plan, conditions, _numbers(units), fixed_server=fixed_server, grow_batch=grow_batch
        )  # fmt: skip
        _show_scale(problem, points, plot=plot, json=json)
        return
    if fixed_server or grow_batch or plot is not None:
        raise InvalidInput("--fixed-server, --grow-batch and --plot go with --units, such as --units 1,10,100,1000")
    result = simulate_plan(problem, plan, conditions)
    rungs = what_it_costs(problem, plan, conditions)
    if json:
        typer.echo(json_module.dumps(_as_dict(result, rungs, conditions), indent=1))
        return
    _show(problem, result, rungs)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.replace("_", "").split(",")]
    except ValueError:
        raise InvalidInput(f"--units is {text!r}; it must be whole numbers with commas, such as 1,10,100") from None


def _show_scale(problem: Problem, points: tuple[Point, ...], *, plot: str | None, json: bool) -> None:
    if plot is not None:
        from heterps.report.plots import plot_scale

        plot_scale({problem.profile.model: points}, plot)
    if json:
        typer.echo(json_module.dumps([asdict(point) for point in points], indent=1))
        return
    from rich.console import Console

    from heterps.report.tables import table
    from heterps.units import format_rate, format_share

    title = f"{problem.profile.model}: the plan on other numbers of units"
    made = table(title, "limit", "it takes", "units", "server", "batch", "throughput", "efficiency", left=1)
    for point in points:
        made.add_row(
            point.limit or "none", format_share(point.limit_costs), f"{point.units:,}", f"{point.server_units:,}",
            f"{point.batch_size:,}", format_rate(point.throughput), format_share(point.efficiency),
        )  # fmt: skip
    Console(markup=False, emoji=False).print(made)
    if plot is not None:
        typer.echo(f"plot written to {plot}")


def _as_dict(result: Simulation, rungs: tuple[Rung, ...], conditions: object) -> dict[str, Any]:
    """Plain data; money that is infinite (nothing gets done) is null."""
    money = result.usd_per_million_samples
    return {
        **asdict(result),
        "usd_per_million_samples": money if math.isfinite(money) else None,
        "predicted_throughput": rungs[0].throughput,
        "costs": [asdict(rung) for rung in rungs[1:]],
        "conditions": asdict(conditions),  # type: ignore[call-overload]
    }


def _cost(rung: Rung) -> str:
    """`jitter costs 3.1%`, `shared links cost 4.0%`, `pipeline gains 5.2%`."""
    verb = "cost" if rung.costs >= 0 else "gain"
    return f"{rung.name} {verb if rung.name.endswith('s') else verb + 's'} {abs(rung.costs):.1%}"


def _show(problem: Problem, result: Simulation, rungs: tuple[Rung, ...]) -> None:
    from rich.console import Console

    from heterps.report.tables import layer_names, table
    from heterps.units import format_rate, format_share, format_usd

    console = Console(markup=False, emoji=False)
    flight = "drains at every step" if result.staleness == 0 else f"{result.staleness + 1} steps in flight"
    title = f"{problem.profile.model}: {result.micro_batches} micro-batches a step, {flight}"
    made = table(title, "stage", "layers", "type", "units", "computing", "waiting", "link busy", left=3)
    for i, stage in enumerate(result.stages):
        made.add_row(
            str(i), layer_names(problem, stage.first, stage.last), stage.type, f"{stage.units:,}",
            format_share(stage.busy), format_share(stage.waiting), format_share(stage.link_busy),
        )  # fmt: skip
    console.print(made)
    console.print(f"bound by {result.bounds}, busy {format_share(result.bounds_busy)} of the time")
    money = result.usd_per_million_samples
    told = format_usd(money) + " a million samples" if math.isfinite(money) else "nothing gets done"
    costs = "".join(f", {_cost(rung)}" for rung in rungs[1:] if rung.name != "pipeline" or abs(rung.costs) > 0.02)
    console.print(
        f"predicted by the closed form {format_rate(rungs[0].throughput)}, simulated {format_rate(result.throughput)} "
        f"({told}){costs}",
        soft_wrap=True,
    )
    if (lost := result.failures) is not None:
        console.print(
            f"{lost.count:,} failures in {lost.hours:g} h: {lost.lost_s / 3600:.3g} h of training lost, "
            f"{lost.restart_s / 3600:.3g} h of restarts, {lost.checkpoint_s / 3600:.3g} h of checkpoints; "
            f"{format_share(lost.share)} of the time was kept",
            soft_wrap=True,
        )
