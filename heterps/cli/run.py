"""`heterps run`: profile, plan, train and report, in one command."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from heterps.cli.runs import Runs, run_of_name
from heterps.cli.train import INTERRUPTED, AddressOption, EngineOption, WaitOption, engine_settings, train_job

if TYPE_CHECKING:
    from heterps.loop.planning import Planned
    from heterps.runtime import Result

NOT_HERE = 3


def run(
    job_file: Annotated[str, typer.Argument(metavar="JOB", help="job.yaml; heterps init writes one.")],
    name: Annotated[str | None, typer.Option(help="The run's name; by default that of the job file.")] = None,
    runs: Runs = "runs",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as train.lr=0.01.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Stop after the plan, and say what it would cost.")
    ] = False,
    here: Annotated[
        bool, typer.Option("--here", help="If the plan needs other hardware, train by the best plan for this machine.")
    ] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Show all planning methods side by side.")] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, whatever the cache has.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Write trace.json for Perfetto or chrome://tracing.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard.")] = False,
    engine: EngineOption = None,
    address: AddressOption = None,
    wait: WaitOption = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with a run of that name, or start a fresh one.")
    ] = True,
) -> None:
    """Profile, plan, train and report: the whole way of a job."""
    from heterps import catalog as catalogs
    from heterps.cli.drift import watch_drift
    from heterps.cli.measuring import measured_job
    from heterps.cli.plans import check_first, plan_given, say_cost, show_plans
    from heterps.job import Job
    from heterps.loop.planning import choose

    changed = [*(settings or ()), *engine_settings(engine, address, wait)]
    job = Job.load(job_file).with_values(changed, source=job_file)
    directory = run_of_name(Path(runs), name if name is not None else Path(job_file).stem, fresh=not resume)
    catalog = catalogs.load()
    check_first(job, catalog)
    measured = measured_job(job, fresh=fresh, quiet=False)
    choice = plan_given(job, measured, catalog) if job.plan.file is not None else choose(job, measured, catalog=catalog)
    on_cluster = job.engine.name == "ray" and not here and choice.wanted is not None
    files = show_plans(job, choice, compare=compare, here=not on_cluster)
    if choice.infeasible is not None and not here:
        sys.stderr.write("heterps: to train by the best plan for this machine all the same, add --here\n")
        raise choice.infeasible
    if dry_run:
        say_cost(job, choice, here=not on_cluster)
        return
    if choice.lacking and not here and not on_cluster and not _agreed():
        sys.stderr.write("heterps: nothing was trained; add --here to train by the best plan for this machine\n")
        raise typer.Exit(NOT_HERE)
    planned = choice.wanted if on_cluster else choice.here
    assert planned is not None
    files |= {"profile.json": planned.problem.profile.to_text(), "cluster.yaml": planned.problem.cluster.to_text(),
              "measurement.json": measured.to_text()}  # fmt: skip
    from heterps.loop.comparing import with_prediction
    from heterps.loop.replanning import Replanner

    result = train_job(
        job, directory, plan=planned.plan, devices={}, trace=trace, tensorboard=tensorboard, resume=resume, files=files,
        on_log=watch_drift(job, measured, planned, catalog, directory.path),
        complete=lambda found: with_prediction(found, planned) if _ran(planned, found) else found,
        plan_for=Replanner(planned.problem),
    )  # fmt: skip
    if _ran(planned, result):
        _show_outcome(planned, result, tolerance=job.plan.tolerance, name=directory.name)
    else:
        from heterps.cli.summary import show_result

        show_result(directory, result)
    _report(directory.path)
    if result.stopped == "interrupted":
        again = ["heterps", "run", job_file, "--name", directory.name, *(["--here"] if here else [])]
        again += [*(["--runs", runs] if runs != "runs" else []), *(w for one in settings or () for w in ("--set", one))]
        again += [*(["--engine", engine] if engine else []), *(["--address", address] if address else [])]
        where = f"and saved at step {result.steps}" if result.steps else "before the first step"
        sys.stderr.write(f"heterps: interrupted {where}; go on with: {shlex.join(again)}\n")
        raise typer.Exit(INTERRUPTED)


def _ran(planned: Planned, result: Result) -> bool:
    """Whether a run ended by the plan it began with: one that lost machines may have gone on by another."""
    return result.plan is None or result.plan.stages == planned.plan.stages


def _agreed() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm("Train here by that plan?", err=True)


def _show_outcome(planned: Planned, result: Result, *, tolerance: float, name: str) -> None:
    from heterps.cli.summary import totals
    from heterps.report.profiles import outcome_line, outcome_table

    console = Console(markup=False, emoji=False)
    if not result.losses:
        console.print(f"nothing is left to do after {result.steps:,} steps", highlight=False)
        return
    stages = result.stages
    console.print()
    console.print(outcome_table(
        planned.plan, predicted_s=[stage.predicted_s or 0.0 for stage in stages],
        measured_s=[stage.measured_s for stage in stages], busy=[stage.busy for stage in stages],
    ))  # fmt: skip
    console.print(outcome_line(planned.plan, result.throughput), highlight=False)
    if abs(result.throughput / planned.plan.predicted.throughput - 1) > tolerance:
        console.print(f"that is more than {tolerance:.0%} off; heterps calibrate {name} corrects the next prediction")
    console.print(f"{result.steps:,} steps · {totals(result)}", highlight=False)


def _report(folder: Path) -> None:
    from heterps.cli.runs import writing
    from heterps.report.data import read_run
    from heterps.report.page import render_page

    path = folder / "report.html"
    with writing(path):
        path.write_text(render_page(read_run(folder)), encoding="utf-8")
    typer.echo(f"report: {path}")
