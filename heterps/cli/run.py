"""`heterps run`: profile, plan, train and report, in one command."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from heterps.cli.runs import Runs, run_of_name
from heterps.cli.train import INTERRUPTED, AddressOption, EngineOption, engine_settings, train_job

if TYPE_CHECKING:
    from heterps.catalog import Catalog
    from heterps.job import Job
    from heterps.loop.planning import Choice, Planned
    from heterps.profile.measurement import Measurement
    from heterps.runtime import Result
    from heterps.telemetry import Recorder

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
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with a run of that name, or start a fresh one.")
    ] = True,
) -> None:
    """Profile, plan, train and report: the whole way of a job."""
    from heterps import catalog as catalogs
    from heterps.cli.measuring import measured_job
    from heterps.job import Job
    from heterps.loop.planning import choose

    changed = [*(settings or ()), *engine_settings(engine, address)]
    job = Job.load(job_file).with_values(changed, source=job_file)
    directory = run_of_name(Path(runs), name if name is not None else Path(job_file).stem, fresh=not resume)
    catalog = catalogs.load()
    measured = measured_job(job, fresh=fresh, quiet=False)
    choice = _given(job, measured, catalog) if job.plan.file is not None else choose(job, measured, catalog=catalog)
    if choice.infeasible is not None:
        if not here:
            raise choice.infeasible
        sys.stderr.write(f"heterps: {choice.infeasible}\nheterps: by the best plan for this machine, then\n")
    files = _show_plans(job, choice, compare=compare)
    if dry_run:
        _say_cost(job, choice)
        return
    on_cluster = job.engine.name == "ray" and not here  # what this machine lacks may be there
    if choice.lacking and not here and not on_cluster and not _agreed():
        sys.stderr.write("heterps: nothing was trained; add --here to train by the best plan for this machine\n")
        raise typer.Exit(NOT_HERE)
    planned = choice.wanted if on_cluster and choice.wanted is not None else choice.here
    files |= {"profile.json": planned.problem.profile.to_text(), "cluster.yaml": planned.problem.cluster.to_text(),
              "measurement.json": measured.to_text()}  # fmt: skip
    from heterps.loop.comparing import with_prediction

    result = train_job(
        job, directory, plan=planned.plan, devices={}, trace=trace, tensorboard=tensorboard, resume=resume, files=files,
        on_log=watch_drift(job, measured, planned, catalog, directory.path),
        complete=lambda found: with_prediction(found, planned),
    )  # fmt: skip
    _show_outcome(planned, result)
    _report(directory.path)
    if result.stopped == "interrupted":
        again = f"heterps run {job_file} --name {directory.name}" + (" --here" if here else "")
        sys.stderr.write(f"heterps: interrupted and saved at step {result.steps}; go on with: {again}\n")
        raise typer.Exit(INTERRUPTED)


def _given(job: Job, measured: Measurement, catalog: Catalog) -> Choice:
    """The plan that the job names, whatever others there are."""
    from heterps.loop.here import missing
    from heterps.loop.measuring import cluster_of_job, cluster_of_plan
    from heterps.loop.planning import Choice, Planned, best_here
    from heterps.plan import Plan
    from heterps.profile.assemble import assemble
    from heterps.schedule.planner import goal_of
    from heterps.schedule.problem import Problem

    plan = Plan.load(str(job.plan.file))
    cluster = cluster_of_job(job, catalog) or cluster_of_plan(plan)
    problem = Problem(assemble(measured, cluster, catalog=catalog), cluster, goal_of(plan))
    wanted = Planned(problem, plan)
    lacking = missing(plan, cluster, measured.hardware, catalog)
    return Choice(wanted if not lacking else best_here(job, measured, catalog=catalog), wanted, lacking)


def _show_plans(job: Job, choice: Choice, *, compare: bool) -> dict[str, str]:
    """Prints what layers cost and which plans there are; gives the files that a report needs."""
    from heterps.report.profiles import profile_table
    from heterps.report.tables import show_comparison, show_plan
    from heterps.schedule.comparison import compare_methods
    from heterps.schedule.frontier import frontier, frontier_json
    from heterps.schedule.search import Settings

    console = Console()
    first = choice.wanted or choice.here
    console.print(profile_table(first.problem.profile, list(first.problem.cluster.types)))
    files: dict[str, str] = {}
    if compare and job.plan.file is None:
        console.print()
        found = compare_methods(first.problem, methods=None, settings=Settings())
        show_comparison(first.problem, found)
        files["comparison.json"] = found.to_json()
    any_speed = replace(first.problem.goal, samples=None, deadline_hours=None, budget_usd=None, min_throughput=0.0)
    files["frontier.json"] = frontier_json(list(frontier(first.problem.with_goal(any_speed), points=16)))
    console.print()
    show_plan(first.problem, first.plan)
    if choice.lacking and choice.wanted is not None:
        rent = ", ".join(f"{units} × {name}" for name, units in choice.lacking.items())
        console.print(f"\nThis machine lacks what the plan needs; to run it, rent {rent}.", highlight=False)
        console.print("The best plan for this machine:\n")
        show_plan(choice.here.problem, choice.here.plan)
        files |= {"rent/plan.json": choice.wanted.plan.to_text(),
                  "rent/cluster.yaml": choice.wanted.problem.cluster.to_text(),
                  "rent/profile.json": choice.wanted.problem.profile.to_text()}  # fmt: skip
    return files


def _agreed() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty() and typer.confirm("Train here by that plan?", err=True)


def _say_cost(job: Job, choice: Choice) -> None:
    """What the whole job would take and cost, by each plan."""
    from heterps.loop.measuring import job_samples
    from heterps.units import MILLION, format_usd

    samples = job_samples(job)
    for what, planned in (("the plan", choice.wanted), ("this machine", choice.here)):
        if planned is None or (what == "this machine" and choice.wanted is choice.here):
            continue
        was = planned.plan.predicted
        if samples is None:
            text = f"{format_usd(was.usd_per_million_samples)} a million samples"
        else:
            hours = samples / was.throughput / 3600
            money = format_usd(samples / MILLION * was.usd_per_million_samples)
            text = f"{samples:,.0f} samples in {_duration(hours)} for {money}"
        typer.echo(f"{what}: {text}")


def _duration(hours: float) -> str:
    return f"{hours:.3g} h" if hours >= 1 else f"{hours * 60:.3g} min" if hours >= 1 / 60 else f"{hours * 3600:.3g} s"


def watch_drift(job: Job, measured: Measurement, planned: Planned, catalog: Catalog, folder: Path) -> Any:
    """Tells when the run leaves its prediction, and proposes another plan; planning goes on beside the training."""
    from heterps.loop.comparing import Drift

    drift: list[Drift] = []

    def on_log(recorder: Recorder, samples: int, seconds: float) -> None:
        def tell(throughput: float) -> None:
            steps = max(1.0, samples / planned.problem.profile.batch_size)
            took = [recorder.busy_s(number) / steps for number in range(len(planned.plan.stages))]
            recorder.event("drift", predicted=planned.plan.predicted.throughput, measured=throughput)
            threading.Thread(
                target=_propose, args=(job, measured, planned, catalog, folder, took, throughput), name="propose",
                daemon=True,
            ).start()  # fmt: skip

        if not drift:
            drift.append(Drift(planned.plan.predicted.throughput, job.plan.tolerance, tell))
        drift[0](samples, seconds)

    return on_log


def _propose(
    job: Job, measured: Measurement, planned: Planned, catalog: Catalog, folder: Path, took: list[float], now: float
) -> None:
    from heterps.loop.comparing import calibrated
    from heterps.loop.planning import choose
    from heterps.report.tables import stages_line

    was = planned.plan.predicted.throughput
    corrected = calibrated(measured, planned, measured_s=took, throughput=now, catalog=catalog)
    better = choose(job.with_values(["plan={}"], source="job"), corrected, catalog=catalog).here.plan
    path = folder / "proposed-plan.json"
    better.save(path)
    what = (
        "the plan stays the best one"
        if better.stages == planned.plan.stages
        else f"a better one now is {stages_line(better)} ({better.predicted.throughput:,.0f}/s), in {path}"
    )
    sys.stderr.write(
        f"\nheterps: {now:,.0f} samples/s is {now / was - 1:+.0%} off the predicted {was:,.0f}/s; {what}\n"
    )


def _show_outcome(planned: Planned, result: Result) -> None:
    from heterps.cli.summary import totals
    from heterps.report.profiles import outcome_line, outcome_table

    console = Console()
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
    console.print(f"{result.steps:,} steps · {totals(result)}", highlight=False)


def _report(folder: Path) -> None:
    from heterps.cli.runs import writing
    from heterps.report.data import read_run
    from heterps.report.page import render_page

    path = folder / "report.html"
    with writing(path):
        path.write_text(render_page(read_run(folder)), encoding="utf-8")
    typer.echo(f"report: {path}")
