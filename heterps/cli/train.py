"""`heterps train`: run a job in this process."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli.options import Json
from heterps.cli.runs import Run, Runs, opened, run_of_name, writing
from heterps.errors import InvalidInput

if TYPE_CHECKING:
    from heterps.job import Job
    from heterps.models import Chain
    from heterps.plan import Plan
    from heterps.runtime import Result, Settings
    from heterps.telemetry import Recorder

INTERRUPTED = 130
EngineOption = Annotated[
    str | None, typer.Option("--engine", metavar="NAME", help="What runs the plan: local or ray; else the job's.")
]
AddressOption = Annotated[
    str | None, typer.Option("--address", metavar="ADDRESS", help="Of a running Ray cluster, or auto, for engine ray.")
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
        typer.Option(metavar="TYPE=DEVICE", help="Run a type of the plan elsewhere, such as v100=cpu."),
    ] = None,
    engine: EngineOption = None,
    address: AddressOption = None,
    resume: Annotated[
        bool, typer.Option("--resume/--no-resume", help="Go on with a run of that name, or start a fresh one.")
    ] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
    json: Json = False,
) -> None:
    """Train a model as a job file says; an interrupted run goes on where it was."""
    from heterps.job import Job

    changed = [*(settings or ()), *engine_settings(engine, address)]
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
            ("--address", [address] if address else []),
        ):  # fmt: skip
            again += [word for value in values for word in (option, value)]
        sys.stderr.write(f"heterps: interrupted and saved at step {result.steps}; go on with: {shlex.join(again)}\n")
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
) -> Result:
    """Trains a job in a run's directory, and leaves there what it gave. All that can be refused is refused first.

    `files` are further ones for the directory, by name. `on_log` is called as the run goes on (see
    `heterps.runtime.Settings.on_log`), `complete` adds to the result before it is written.
    """
    import torch

    from heterps.runtime import placement

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
                checkpoints=run.checkpoints(job), evaluation=held_out, recorder=recorder, devices=devices,
                progress=not quiet, resume=resume, on_log=None if on_log is None else partial(on_log, recorder),
            )  # fmt: skip
            result = complete(_run(job, chain, data, plan, settings))
        if result.losses or not run.result_file.exists():  # a run that was complete keeps its result
            with writing(run.result_file):
                result.save(run.result_file)
    return result


def engine_settings(engine: str | None, address: str | None) -> list[str]:
    """The options as settings of a job; an address is one of Ray."""
    name = engine or ("ray" if address is not None else None)
    given = [] if name is None else [f"engine.name={name}"]
    return given + ([] if address is None else [f"engine.address={address}"])


def _run(job: Job, chain: Chain, data: Any, plan: Plan | None, settings: Settings) -> Result:
    if job.engine.name == "local" or plan is None:
        from heterps.runtime.trainer import Trainer

        return Trainer(chain, data, plan, settings).run()
    from heterps.runtime.cluster.engine import train_on_ray

    engine = job.engine
    return train_on_ray(
        chain, partial(from_job, job.to_dict(), str(Path.cwd())), plan, settings, address=engine.address,
        replicas=engine.replicas, shards=engine.shards, wait_s=60 * engine.wait_minutes,
        narrow=engine.compress == "bf16",
    )  # fmt: skip


def from_job(data: dict[str, Any], directory: str) -> tuple[Chain, Any]:
    """The model and the data of a job, in a process of the cluster; paths and modules are found as in `directory`."""
    from heterps.job import Job

    if Path(directory).is_dir():
        os.chdir(directory)
        sys.path.insert(0, directory)
    job = Job.from_dict(data)
    source, _ = job.sources()
    return job.build(source), source


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
    from heterps.telemetry.environment import describe_environment

    resumed = newest_checkpoint(run.checkpoints(job)) is not None
    if resumed and run.job_file.exists():
        job.check_resumes(Job.load(run.job_file), run=run.name)
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


def _recorder(run: Run, stages: dict[int, str], *, trace: bool, tensorboard: bool, append: bool) -> Recorder:
    from heterps.telemetry import ChromeTrace, JsonLines, Recorder, TensorBoard

    sinks: list[Any] = [JsonLines(run.path / "telemetry.jsonl", append=append)]
    if trace:
        sinks.append(ChromeTrace(run.path / "trace.json", stages=stages))
    if tensorboard:
        sinks.append(TensorBoard(run.path / "tensorboard"))
    return Recorder(sinks)
