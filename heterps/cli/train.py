"""`heterps train`: run a job in this process."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli.options import Json
from heterps.cli.runs import Run, Runs, keep_job, kept_job, opened, run_of_name, writing
from heterps.errors import InvalidInput

if TYPE_CHECKING:
    from heterps.job import Job
    from heterps.models import Chain
    from heterps.plan import Plan
    from heterps.runtime import Result, Settings
    from heterps.storage import Url
    from heterps.telemetry import Recorder

INTERRUPTED = 130
EngineOption = Annotated[
    str | None, typer.Option("--engine", metavar="NAME", help="What runs the plan: local or ray; else the job's.")
]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="ADDRESS", help="Of a running Ray cluster, or auto, for engine ray.")
]


WaitOption = Annotated[
    float | None,
    typer.Option("--wait", metavar="MINUTES", min=0, help="Wait for a cluster that holds the plan, for engine ray."),
]


def train(
    job_file: Annotated[str, typer.Argument(metavar="JOB", help="job.yaml; heterps init writes one.")],
    plan_file: Annotated[
        str | None, typer.Option("--plan", metavar="plan.json", help="Run by this plan; else the job's, or none.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The run's name; by default that of the job file.")] = None,
    runs: Runs = "runs",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key, such as train.lr=0.01.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write trace.json for Perfetto or chrome://tracing.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write curves for TensorBoard.")] = False,
    devices: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=DEVICE", help="Run a type of the plan elsewhere: v100=cpu, v100=cuda:0+cuda:2."),
    ] = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    wait: WaitOption = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with a run of that name, or start a fresh one.")
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
    json: Json = False,
) -> None:
    """Train a model as a job file says; an interrupted run goes on where it was."""
    from heterps.job import Job

    changed = [*(settings or ()), *engine_settings(engine, address, wait)]
    job = Job.load(job_file).with_values(changed, source=job_file)
    plan = _plan(job, plan_file)
    run = run_of_name(Path(runs), name if name is not None else Path(job_file).stem, fresh=not resume)
    result = train_job(
        job, run, plan=plan, devices=parse_devices(devices or ()), trace=trace, tensorboard=tensorboard, resume=resume,
        quiet=quiet or json,
    )  # fmt: skip
    if json:
        typer.echo(run.result_file.read_text(), nl=False)
    elif not quiet:
        from heterps.cli.summary import show_result

        show_result(run, result)
    if result.stopped == "interrupted":
        again = ["heterps", "train", job_file, "--name", run.name]
        for option, values in (
            ("--plan", [plan_file] if plan_file else []), ("--runs", [runs] if runs != "runs" else []),
            ("--set", settings or []), ("--devices", devices or []), ("--engine", [engine] if engine else []),
            ("--address", [address] if address else []), ("--wait", [f"{wait:g}"] if wait is not None else []),
        ):  # fmt: skip
            again += [word for value in values for word in (option, value)]
        where = f"and saved at step {result.steps}" if result.steps else "before the first step"
        sys.stderr.write(f"heterps: interrupted {where}; go on with: {shlex.join(again)}\n")
        raise typer.Exit(INTERRUPTED)


def train_job(
    job: Job,
    run: Run,
    *,
    plan: Plan | None,
    devices: dict[str, str],
    trace: bool = False,
    tensorboard: bool = False,
    resume: bool = True,
    quiet: bool = False,
    files: Mapping[str, str] = MappingProxyType({}),
    on_log: Callable[[Recorder, int, float], None] | None = None,
    complete: Callable[[Result], Result] = lambda result: result,
    plan_for: Callable[[Mapping[str, int]], Plan | None] | None = None,
) -> Result:
    """Trains a job in a run's directory, and leaves there what it gave. All that can be refused is refused first.

    `files` are further ones for the directory, by name. `on_log` is called as the run goes on (see
    `heterps.runtime.Settings.on_log`), `complete` adds to the result before it is written. `plan_for` makes a plan for
    what is left of a cluster that lost machines.
    """
    import torch

    from heterps.runtime import placement
    from heterps.runtime.trainer import Trainer

    if job.engine.name == "ray" and plan is None:
        raise InvalidInput("engine ray runs a plan: give one (--plan plan.json), or use heterps run, which makes one")
    data, held_out = job.sources()
    chain = job.build(data)
    chain.check_batch(job.example(data))
    job.settings()
    job.load_cluster()
    on_ray = job.engine.name == "ray" and plan is not None  # the hardware is the cluster's then, not this machine's
    stages = placement.place(chain, plan, dict.fromkeys(plan.types, "cpu") if plan and on_ray else devices)
    if not quiet:
        _say_what_runs(job, plan, [f"{stage.type} × {stage.units}" for stage in stages])
    with opened(run):
        resumed = _begin(job, run, plan, files)
        torch.manual_seed(job.train.seed)  # for what layers draw; a checkpoint brings its own state
        names = {stage.number: f"{stage.type} × {stage.units}" for stage in stages}
        with _recorder(run, names, trace=trace, tensorboard=tensorboard, append=resumed) as recorder:
            settings = job.settings(
                checkpoints=str(run.checkpoints(job)), evaluation=held_out, recorder=recorder, devices=devices,
                progress=not quiet, resume=resume, on_log=None if on_log is None else partial(on_log, recorder),
            )  # fmt: skip
            if on_ray and plan is not None:
                found = _run_on_ray(job, run, chain, plan, settings, plan_for)
            else:
                found = Trainer(chain, data, plan, settings).run()
            result = complete(found)
        if result.losses or not run.result_file.exists():  # a run that was complete keeps its result
            with writing(run.result_file):
                result.save(run.result_file)
    return result


def engine_settings(engine: str | None, address: str | None, wait: float | None) -> list[str]:
    """The options as settings of a job; an address is one of Ray."""
    name = engine or ("ray" if address is not None else None)
    given = [] if name is None else [f"engine.name={name}"]
    given += [] if address is None else [f"engine.address={address}"]
    return given + ([] if wait is None else [f"engine.wait_minutes={wait}"])


def _run_on_ray(job: Job, run: Run, chain: Chain, plan: Plan, settings: Settings, plan_for: Any) -> Result:
    from heterps.runtime.cluster.engine import train_on_ray

    engine, told = job.engine, (job.to_dict(), str(Path.cwd()))
    held_out = partial(held_out_of_job, *told) if settings.evaluation is not None else None
    with redirect_stdout(sys.stderr):  # where Ray prints what it has to say of a machine that died
        return train_on_ray(
            chain, partial(from_job, *told), plan, replace(settings, evaluation=held_out), address=engine.address,
            name=run.name, replicas=engine.replicas, shards=engine.shards, wait_s=60 * engine.wait_minutes,
            narrow=engine.compress == "bf16", sums=engine.sums, elastic=engine.elastic, stragglers=engine.stragglers,
            plan_for=plan_for, metrics_port=engine.metrics_port, metrics_host=engine.metrics_host,
            say=lambda line: _say(line) if settings.progress else None,
        )  # fmt: skip


def _say(line: str) -> None:
    sys.stderr.write(f"heterps: {line}\n")


def from_job(data: dict[str, Any], directory: str) -> tuple[Chain, Any]:
    """The model and the data of a job, in a process of the cluster; paths and modules are found as in `directory`."""
    job = _job_in(data, directory)
    source, _ = job.sources()
    return job.build(source), source


def held_out_of_job(data: dict[str, Any], directory: str) -> Any:
    """The rows that a job holds out, in a process of the cluster."""
    return _job_in(data, directory).sources()[1]


def _job_in(data: dict[str, Any], directory: str) -> Job:
    from heterps.job import Job

    if Path(directory).is_dir():
        os.chdir(directory)
        if directory not in sys.path:
            sys.path.insert(0, directory)
    return Job.from_dict(data)


def parse_devices(given: Sequence[str]) -> dict[str, str]:
    """Type -> device, from TYPE=DEVICE, each given by itself or with commas."""
    devices = {}
    for pair in (pair.strip() for text in given for pair in text.split(",")):
        type_, equals, device = pair.partition("=")
        if not (type_ and equals and device):
            raise InvalidInput(f"--devices is TYPE=DEVICE, such as v100=cpu, not {pair!r}")
        devices[type_] = device
    return devices


def _plan(job: Job, file: str | None) -> Plan | None:
    from heterps.plan import Plan

    file = file or job.plan.file
    return None if file is None else Plan.load(file)


def _say_what_runs(job: Job, plan: Plan | None, stages: list[str]) -> None:
    text = f"{job.model.name} on {' → '.join(stages)}"
    if plan is None:
        text += ", without a plan"
        if job.cluster is not None or job.goal is not None or job.plan.method != "auto":
            text += " (for the job's cluster, goal and method: heterps run)"
    sys.stderr.write(f"heterps: {text}\n")


def _begin(job: Job, run: Run, plan: Plan | None, files: Mapping[str, str]) -> bool:
    """Writes the job, the plan and what belongs to it into the run's directory; true if it goes on with checkpoints."""
    import json as json_module

    from heterps.job import Job
    from heterps.runtime.restore import newest_checkpoint
    from heterps.storage import Url
    from heterps.telemetry.environment import describe_environment

    checkpoints = run.checkpoints(job)
    resumed = newest_checkpoint(checkpoints) is not None
    if resumed and run.job_file.exists():
        job.check_resumes(Job.load(run.job_file), run=run.name)
    if isinstance(checkpoints, Url):
        _check_kept(job, checkpoints, resumed=resumed)
        keep_job(job, checkpoints)  # which also shows at once whether they can be written
    with writing(run.path):
        job.save(run.job_file)
        plan_copy = run.path / "plan.json"
        plan_copy.unlink(missing_ok=True)
        if plan is not None:
            plan.save(plan_copy)
        environment = json_module.dumps(describe_environment(), indent=1) + "\n"
        for name, text in {**files, "environment.json": environment}.items():
            path = run.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return resumed


def _check_kept(job: Job, checkpoints: Url, *, resumed: bool) -> None:
    """Checkpoints in storage may be those of a run that this machine knows nothing of."""
    kept = kept_job(checkpoints) if resumed else None
    if kept is None:
        return
    try:
        job.check_resumes(kept, run="there")
    except InvalidInput:
        raise InvalidInput(
            f"{checkpoints} holds checkpoints of a job with another model, data or seed; choose another checkpoint.path"
        ) from None


def _recorder(run: Run, stages: dict[int, str], *, trace: bool, tensorboard: bool, append: bool) -> Recorder:
    from heterps.telemetry import ChromeTrace, JsonLines, Recorder, TensorBoard

    sinks: list[Any] = [JsonLines(run.path / "telemetry.jsonl", append=append)]
    if trace:
        sinks.append(ChromeTrace(run.path / "trace.json", stages=stages))
    if tensorboard:
        sinks.append(TensorBoard(run.path / "tensorboard"))
    return Recorder(sinks)
