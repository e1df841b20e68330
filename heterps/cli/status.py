"""`heterps status`: jobs that run on a Ray cluster."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import typer
from rich.console import Console

from heterps.cli.options import Json
from heterps.units import format_seconds, format_share

ClusterAddress = Annotated[
    str | None, typer.Option("--address", metavar="ADDRESS", help="Of a Ray cluster; by default that of this machine.")
]


def status(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="A job's name; by default all jobs.")] = None,
    address: ClusterAddress = None,
    json: Json = False,
) -> None:
    """Show the jobs that run on a Ray cluster, or one of them in detail."""
    from heterps.runtime.cluster import registry

    with registry.connected(address):
        actors = registry.jobs() if job is None else {job: registry.job(job)}
        found = {name: registry.ask(actor, "status") for name, actor in actors.items()}
    if json:
        data = [one or {"job": name, "state": "no answer"} for name, one in found.items()]
        typer.echo(json_module.dumps(data if job is None else data[0], indent=1))
        return
    console = Console(markup=False, emoji=False)
    if job is not None:
        _show_job(console, job, found[job])
    elif found:
        _show_jobs(console, found)
    else:
        typer.echo("no job runs on this cluster")


def _show_jobs(console: Console, found: dict[str, dict[str, Any] | None]) -> None:
    from heterps.report.tables import table

    shown = table("jobs", "job", "state", "step", "samples/s", "loss", "AUC", "restarts", "checkpoint", left=2)
    for name, one in found.items():
        if one is None:
            shown.add_row(name, "no answer", *[""] * 6)
            continue
        shown.add_row(
            name, one["state"], _steps(one), f"{one['samples_per_s']:,.0f}", _figure(one["loss"]), _figure(one["auc"]),
            str(sum(one["restarts"].values())), _checkpoint(one),
        )  # fmt: skip
    console.print(shown)


def _show_job(console: Console, name: str, one: dict[str, Any] | None) -> None:
    from heterps.report.tables import table

    if one is None:
        console.print(f"{name}: no answer; its coordinator is starting, frozen or cut off")
        return
    parts = [f"step {_steps(one)}", f"{one['samples']:,} samples", f"{one['samples_per_s']:,.0f} samples/s"]
    parts += [f"{label} {one[key]:.4f}" for key, label in (("loss", "loss"), ("auc", "AUC")) if one[key] is not None]
    _say(console, f"{name}: {one['state']} · {' · '.join(parts)}")
    stages = table("", "stage", "type", "units", "replica", "machine", "busy", left=2)
    for number, stage in enumerate(one["stages"]):
        for place, replica in enumerate(stage["replicas"]):
            slow = f" (takes {replica['slow']:.1f} times as long)" if replica["slow"] is not None else ""
            busy = format_share(replica["busy"]) if replica["busy"] is not None else ""
            stages.add_row(
                str(number), stage["type"], str(stage["units"]), str(place), (replica["machine"] or "") + slow, busy
            )
    console.print(stages)
    if one["shards"]:
        _say(console, f"shards: {', '.join(machine or 'starting' for machine in one['shards'])}")
    for table_name, figures in one["tables"].items():
        _say(console, f"table {table_name}: {figures['rows']:,} rows, {figures['bytes'] / 1e6:,.1f} MB")
    restarts = ", ".join(f"{count} {reason}" for reason, count in one["restarts"].items())
    _say(console, f"attempt {one['attempts']}" + (f"; restarts: {restarts}" if restarts else ""))
    if one["last_failure"] is not None:
        _say(console, f"last failure: {one['last_failure']}")
    _say(console, f"checkpoint: {_checkpoint(one) or 'none yet'}, in {one['directory']}")
    if one["metrics"] is not None:
        _say(console, f"metrics: {one['metrics']}")
    if not one["followed"]:
        _say(console, "the command that started it is gone; the same command follows it again")


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _steps(one: dict[str, Any]) -> str:
    return f"{one['step']:,}" + (f"/{one['steps']:,}" if one["steps"] else "")


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _checkpoint(one: dict[str, Any]) -> str:
    saved = one["checkpoint"]
    return "" if saved is None else f"step {saved['step']:,}, {format_seconds(saved['age_s'])} ago"
