"""`train_on_ray`: what engine `ray` does for whoever asked for it."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from heterps.errors import InvalidInput
from heterps.models import Chain
from heterps.plan import Plan
from heterps.runtime.checkpoint import Checkpoints, Store
from heterps.runtime.cluster._ray import actor, exceptions, ray
from heterps.runtime.cluster.actors import CONTROL
from heterps.runtime.cluster.attempt import machines
from heterps.runtime.cluster.coordinator import Coordinator, Outcome, RunFailed
from heterps.runtime.cluster.history import History
from heterps.runtime.cluster.layout import Layout, lay_out
from heterps.runtime.cluster.policy import Limits
from heterps.runtime.cluster.work import Factory, Work, for_processes
from heterps.runtime.evaluation import Evaluation, evaluate
from heterps.runtime.placement import cores, place
from heterps.runtime.restore import newest_checkpoint, restore
from heterps.runtime.result import Result, StageResult
from heterps.runtime.settings import Settings
from heterps.runtime.trainer import _interrupts
from heterps.telemetry import Progress, Recorder

POLL_S = 0.5
"""Between two looks at how far the run is."""


class CoordinatorActor:
    """A `Coordinator` in a process of its own. When it dies Ray makes another one, which goes on with the run."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._coordinator = Coordinator(*args, **options)

    def run(self) -> Outcome:
        """See `Coordinator.run`."""
        return self._coordinator.run()

    def stop(self) -> None:
        """See `Coordinator.stop`."""
        self._coordinator.stop()

    def progress(self) -> tuple[int, int, float | None, float | None, list[str]]:
        """Step, samples, the last loss, the AUC, and what went wrong so far."""
        outcome = self._coordinator.outcome
        loss = outcome.losses[-1] if outcome.losses else None
        return outcome.step, outcome.samples, loss, outcome.auc, list(outcome.failures)


Coordinators: Any = actor(
    CoordinatorActor, num_cpus=0, max_restarts=-1, max_task_retries=-1, concurrency_groups={CONTROL: 2}
)


def train_on_ray(
    chain: Chain,
    factory: Factory,
    plan: Plan,
    settings: Settings,
    *,
    address: str | None = None,
    replicas: int | Sequence[int] | None = None,
    shards: int | None = None,
    wait_s: float = 0.0,
    narrow: bool = False,
    limits: Limits | None = None,
    bring_back: bool = True,
) -> Result:
    """Trains by a plan on a Ray cluster; in sync mode the result is that of engine local and of plain PyTorch.

    Args:
        chain: as the factory makes it; gets the trained weights and rows.
        factory: makes the chain and the data in every process, the same each time.
        plan: which layer runs where, on how many units.
        settings: `checkpoints` is needed: a directory that all machines reach under the same path.
        address: of a running cluster, or "auto"; None: the one this process is connected to, or a new one here.
        replicas: processes of each stage; None: as few as the machines allow.
        shards: parameter servers; None: as many as the plan has units for them, and at least one.
        wait_s: seconds to wait for a cluster that is large enough; 0: refuse the plan at once.
        narrow: send activations and their gradients as bf16.
        limits: when to restart and when to give up.
        bring_back: whether the chain gets the trained weights and rows.
    """
    checkpoints = _checked(chain, plan, settings)
    with _connected(address, plan, settings.devices, shards):
        layout = _layout(chain, plan, settings.devices, replicas, shards)
        micro_batches = max(settings.micro_batches, *(stage.replicas for stage in layout.stages))
        work = Work(
            factory=factory, settings=for_processes(settings, micro_batches=micro_batches), layout=layout, narrow=narrow
        )
        outcome = _follow(work, checkpoints, settings, limits or Limits(), wait_s)
    newest = newest_checkpoint(Store(checkpoints).path)
    if bring_back and newest is not None:
        for layer in chain.embeddings:
            layer.table = None
        restore(chain, newest, seed=settings.seed)
    found = None
    if bring_back and settings.evaluation is not None and outcome.stopped == "done":
        found = evaluate(
            chain, settings.evaluation, step=outcome.step, batch_size=settings.batch_size, batches=settings.eval_batches
        )
    return _result(outcome, layout, plan, found)


def _checked(chain: Chain, plan: Plan, settings: Settings) -> Checkpoints:
    if settings.checkpoints is None:
        raise InvalidInput("engine ray needs checkpoints: a directory that all machines reach under the same path")
    if settings.mode != "sync":
        raise InvalidInput("engine ray trains in mode sync; use engine local for async")
    if settings.evaluation is not None and settings.eval_every is not None:
        raise InvalidInput("engine ray evaluates at the end only; leave eval.every_steps out, or use engine local")
    store = Store(settings.checkpoints)
    if not settings.resume and store.newest() is not None:
        raise InvalidInput(f"{store.path} holds checkpoints of another run; resume it, or choose another path")
    on_cores = dict.fromkeys(plan.types, "cpu")  # the machines of the cluster have their own devices
    place(chain, plan, on_cores)
    return replace(settings.checkpoints, path=store.path)


def _layout(chain: Chain, plan: Plan, devices: Mapping[str, str] | None, replicas: Any, shards: int | None) -> Layout:
    most = max((node.get("CPU", 0.0) for node in machines()), default=1.0)
    return lay_out(
        plan, tables=len(chain.embeddings), node_cpus=most, replicas=replicas, shards=shards, devices=devices
    )


@contextmanager
def _connected(
    address: str | None, plan: Plan, devices: Mapping[str, str] | None, shards: int | None
) -> Iterator[None]:
    """Joins a cluster, or starts one here that is large enough for the plan, and ends it."""
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"address": address}
    if address is None:
        layout = lay_out(plan, tables=1, node_cpus=float("inf"), shards=shards, devices=devices)
        needed = sum(demand.get("CPU", 0.0) for demand in layout.demands({}))
        options = {"num_cpus": int(max(cores(), needed)), "include_dashboard": False}
    ray.init(log_to_driver=False, logging_level="ERROR", **options)
    try:
        yield
    finally:
        ray.shutdown()


def _follow(work: Work, checkpoints: Checkpoints, settings: Settings, limits: Limits, wait_s: float) -> Outcome:
    """Runs the coordinator to its end, and shows how far it is."""
    job = uuid.uuid4().hex[:8]
    recorder, stop = settings.recorder or Recorder(), threading.Event()
    coordinator = Coordinators.remote(work, checkpoints, job=job, limits=limits, wait_s=wait_s)
    with ExitStack() as stack:
        stack.callback(ray.kill, coordinator)
        stack.enter_context(_interrupts(stop))
        progress = stack.enter_context(Progress(total=settings.steps, quiet=not settings.progress))
        running, told, seen = coordinator.run.remote(), False, 0
        while not ray.wait([running], timeout=POLL_S)[0]:
            if stop.is_set() and not told:
                coordinator.stop.options(concurrency_group=CONTROL).remote()
                told = True
            step, samples, loss, auc, failures = ray.get(
                coordinator.progress.options(concurrency_group=CONTROL).remote()
            )
            for failure in failures[seen:]:
                recorder.event("restart", reason=failure, step=step)
            seen = len(failures)
            if loss is not None:
                recorder.scalar("loss", loss, step=step)
                progress.update(step=step, samples=samples, loss=loss, auc=auc)
        try:
            outcome: Outcome = ray.get(running)
        except exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except exceptions.RayError as error:
            raise RunFailed(f"the coordinator is gone: {str(error).splitlines()[0]}") from None
        _clean_up(Path(checkpoints.path), job)
        return outcome


def _clean_up(directory: Path, job: str) -> None:
    """Removes what a job keeps beside its checkpoints for as long as it runs."""
    History(directory, job).remove()
    for left in directory.glob(f".parts-{job}-*"):
        shutil.rmtree(left, ignore_errors=True)


def _result(outcome: Outcome, layout: Layout, plan: Plan, found: Evaluation | None) -> Result:
    steps, seconds = max(1, outcome.step - outcome.first_step), outcome.seconds
    busy = outcome.busy_s or [0.0] * len(layout.stages)
    stages = [
        StageResult(
            type=stage.type, units=stage.units, measured_s=worked / steps,
            busy=min(1.0, worked / seconds) if seconds > 0 else 0.0,
        )
        for stage, worked in zip(layout.stages, busy, strict=True)
    ]  # fmt: skip
    samples = outcome.samples - outcome.first_samples
    return Result(
        steps=outcome.step, samples=outcome.samples, losses=outcome.losses,
        auc=outcome.auc if found is None else found.auc, eval_loss=None if found is None else found.loss,
        evaluations=[] if found is None else [found.to_dict()],
        throughput=samples / seconds if seconds > 0 else 0.0, seconds=seconds, stages=stages,
        stopped=outcome.stopped, skipped_rows=outcome.skipped_rows, plan=plan,
    )  # fmt: skip
