"""`train_on_ray`: what engine `ray` does for whoever asked for it."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from heterps.errors import InvalidInput
from heterps.models import Chain
from heterps.plan import Plan
from heterps.runtime.checkpoint import Checkpoints, Store
from heterps.runtime.cluster import registry
from heterps.runtime.cluster._ray import CONTROL, actor, node_host, pickled, ray, unpickled
from heterps.runtime.cluster.coordinator import Coordinator, Options
from heterps.runtime.cluster.elastic import Placing, PlanFor
from heterps.runtime.cluster.follow import Follower
from heterps.runtime.cluster.history import History
from heterps.runtime.cluster.journal import Cursor
from heterps.runtime.cluster.layout import lay_out
from heterps.runtime.cluster.lease import LeaseLost
from heterps.runtime.cluster.metrics import MetricsServer
from heterps.runtime.cluster.nodes import resources
from heterps.runtime.cluster.parts import remove_parts
from heterps.runtime.cluster.policy import Limits
from heterps.runtime.cluster.status import status_of
from heterps.runtime.cluster.tally import Outcome
from heterps.runtime.cluster.work import Factory, Work, for_processes
from heterps.runtime.placement import cores, place
from heterps.runtime.restore import newest_checkpoint, restore
from heterps.runtime.result import Result, StageResult
from heterps.runtime.settings import Settings
from heterps.runtime.trainer import _interrupts

KEPT_S = 3600.0
"""Seconds for which a run that ended while nobody followed it keeps its result; its checkpoints stay in any case."""
LOOK_S = 0.5
"""Between two looks at a coordinator that is to go."""
PIECE_BYTES = 1 << 16
MOST_PIECES = 128
"""What a new coordinator is told travels in such pieces, larger ones only where they would be too many: Ray keeps small
arguments itself, up to 10 MB, and can make the coordinator again when the process that asked for it is gone."""


class CoordinatorActor:
    """A `Coordinator` in a process of its own, which works from its start. When it dies Ray makes another one.

    It outlives the command that asked for it. All its methods are for the threads CONTROL.
    """

    def __init__(self, *pieces: bytes) -> None:
        """Takes pieces of `pickled(work, checkpoints, options)`."""
        self._coordinator = Coordinator(*unpickled(b"".join(pieces)))
        self._outcome: Outcome | BaseException | None = None
        self._metrics = self._serve_metrics()
        threading.Thread(target=self._work, name="coordinator", daemon=True).start()

    def _work(self) -> None:
        try:
            self._run()
            time.sleep(KEPT_S)
            self._coordinator.check()
        except LeaseLost:
            os._exit(1)  # there is another one, which has this one's name
        options = self._coordinator.options
        _clean_up(self._coordinator.directory, options.job)
        ray.kill(ray.get_actor(options.name, namespace=registry.NAMESPACE))

    def _run(self) -> None:
        try:
            self._outcome = self._coordinator.run()
        except LeaseLost:
            raise
        except BaseException as error:
            self._outcome = error

    def _serve_metrics(self) -> MetricsServer | None:
        options = self._coordinator.options
        if options.metrics_port is None:
            return None
        try:
            return MetricsServer(
                partial(status_of, self._coordinator), host=options.metrics_host or node_host(),
                port=options.metrics_port,
            )  # fmt: skip
        except OSError as error:  # no reason to end the training
            self._coordinator.journal.event("metrics", error=f"not served: {error.strerror or error}")
            return None

    def news(self, cursor: Cursor | None, wait_s: float, who: str) -> dict[str, Any]:
        """What happened after a cursor, and where the run stands, for `who` follows; see `Journal.after`."""
        over = self._outcome is not None
        coordinator = self._coordinator
        cursor, entries = coordinator.journal.after(cursor, wait_s=0.0 if over else wait_s, who=who)
        outcome, tally = coordinator.outcome, coordinator.tally
        busy: dict[int, list[float]] = {}
        for seat, share in list(tally.busy.items()):
            busy.setdefault(seat.stage, []).append(share)
        return {
            "cursor": cursor, "entries": entries, "over": over, "stopping": coordinator.stopping,
            "step": outcome.step, "samples": outcome.samples, "loss": outcome.losses[-1] if outcome.losses else None,
            "auc": outcome.auc, "busy": {stage: sum(shares) / len(shares) for stage, shares in busy.items()},
        }  # fmt: skip

    def leave(self, who: str) -> bool:
        """See `Journal.leaves`."""
        return self._coordinator.journal.leaves(who)

    def result(self) -> Outcome | None:
        """How the run ended, or what it raised; None as long as it goes on."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def status(self) -> dict[str, Any]:
        """See `heterps.runtime.cluster.status`."""
        return status_of(self._coordinator, metrics=self._metrics.address if self._metrics is not None else None)

    def over(self) -> bool:
        """Whether the run has ended."""
        return self._outcome is not None

    def has_reached(self, steps: int | None, epochs: int | None) -> bool | None:
        """Whether the run has ended, and has done all that these settings ask for; None as long as it goes on."""
        if self._outcome is None:
            return None
        done = isinstance(self._outcome, Outcome) and self._outcome.stopped != "interrupted"
        settings = self._coordinator.work.settings
        return done and (settings.steps, settings.epochs) == (steps, epochs)

    def stop(self) -> None:
        """See `Coordinator.stop`."""
        self._coordinator.stop()

    def directory(self) -> str:
        """Where its checkpoints lie."""
        return self._coordinator.directory

    def job(self) -> str:
        """The id of its files beside the checkpoints."""
        return self._coordinator.options.job


Coordinators: Any = actor(CoordinatorActor, num_cpus=0, max_restarts=-1, concurrency_groups={CONTROL: 4})


def train_on_ray(
    chain: Chain,
    factory: Factory,
    plan: Plan,
    settings: Settings,
    *,
    address: str | None = None,
    name: str = "train",
    replicas: int | Sequence[int] | None = None,
    shards: int | None = None,
    wait_s: float = 0.0,
    narrow: bool = False,
    sums: str = "auto",
    elastic: bool = False,
    stragglers: Literal["tell", "replace"] = "tell",
    plan_for: PlanFor | None = None,
    metrics_port: int | None = None,
    metrics_host: str | None = None,
    limits: Limits | None = None,
    bring_back: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Trains by a plan on a Ray cluster; in sync mode the result is that of engine local and of plain PyTorch.

    A run whose caller dies goes on; calling again with the same checkpoints follows it to its end.

    Args:
        chain: as the factory makes it; gets the trained weights and rows.
        factory: makes the chain and the data in every process, the same each time.
        plan: which layer runs where, on how many units.
        settings: `checkpoints` is needed: a directory that all machines reach under the same path, or a URL.
        address: of a running cluster, or "auto"; None: the one this process is connected to, or a new one here.
        name: of the job, for `heterps status`; gets a number where the cluster has such a job.
        replicas: processes of each stage; None: as few as the machines allow.
        shards: parameter servers; None: as many as the plan has units for them, and at least one.
        wait_s: seconds to wait for a cluster that is large enough; 0: refuse the plan at once.
        narrow: send activations and their gradients as bf16.
        sums: how dense gradients are added up over replicas; one of `heterps.runtime.settings.SUMS`.
        elastic: go on by a smaller plan where machines are lost, and by this one when they are back.
        stragglers: what to do about replicas that are much slower than the others of their stage: tell, or replace.
        plan_for: makes the best plan for what is left, for `elastic`; None: the same stages with fewer units.
        metrics_port: where the coordinator serves metrics for Prometheus, 0 for any port; None: nowhere.
        metrics_host: the address it serves them on; None: that of its machine in the cluster.
        limits: when to restart and when to give up.
        bring_back: whether the chain gets the trained weights and rows.
        say: tells the user a line, such as that the run was under way already.
    """
    checkpoints = _checked(chain, plan, settings)
    limits = replace(limits or Limits(), elastic=elastic, stragglers=stragglers)
    limits = replace(limits, wait_s=max(limits.wait_s, wait_s))
    asked = tuple(replicas) if isinstance(replicas, Sequence) else replicas
    placing = Placing(tables=len(chain.embeddings), replicas=asked, shards=shards, devices=settings.devices)
    with _connected(address, plan, settings.devices, shards):
        layout = placing.layout(plan, resources())
        micro_batches = max(settings.micro_batches, *(stage.replicas for stage in layout.stages))
        work = Work(
            factory=factory, settings=for_processes(settings, micro_batches=micro_batches), layout=layout,
            narrow=narrow, sums=sums, evaluation=_held_out(settings.evaluation),
        )  # fmt: skip
        options = Options(
            job=uuid.uuid4().hex[:8], name=name, plan=plan, placing=placing, limits=limits, plan_for=plan_for,
            metrics_port=metrics_port, metrics_host=metrics_host,
        )  # fmt: skip
        outcome = _follow(work, checkpoints, options, settings, say)
    newest = newest_checkpoint(str(checkpoints.path))
    if bring_back and newest is not None:
        for layer in chain.embeddings:
            layer.table = None
        restore(chain, newest, seed=settings.seed)
    return _result(outcome, plan)


def _held_out(data: Any) -> Callable[[], Any] | None:
    """Makes the held-out data in the coordinator: by itself if it is a function, else as it is here."""
    return data if data is None or callable(data) else partial(_same, data)


def _same(data: Any) -> Any:
    return data


def _checked(chain: Chain, plan: Plan, settings: Settings) -> Checkpoints:
    if settings.checkpoints is None:
        raise InvalidInput("engine ray needs checkpoints: a directory that all machines reach under the same path")
    store = Store(settings.checkpoints)
    if not settings.resume and store.newest() is not None:
        raise InvalidInput(f"{store.path} holds checkpoints of another run; resume it, or choose another path")
    on_cores = dict.fromkeys(plan.types, "cpu")  # the machines of the cluster have their own devices
    place(chain, plan, on_cores)
    return replace(settings.checkpoints, path=str(store.path))


@contextmanager
def _connected(
    address: str | None, plan: Plan, devices: Mapping[str, str] | None, shards: int | None
) -> Iterator[None]:
    """Joins a cluster, or starts one here that is large enough for the plan, and ends it."""
    if address is not None or ray.is_initialized():
        with registry.connected(address):
            yield
        return
    layout = lay_out(plan, tables=1, node_cpus=float("inf"), shards=shards, devices=devices)
    needed = sum(demand.get("CPU", 0.0) for demand in layout.demands({}))
    ray.init(
        address="local", num_cpus=int(max(cores(), needed)), include_dashboard=False, log_to_driver=False,
        logging_level="ERROR",
    )  # fmt: skip
    try:
        yield
    finally:
        ray.shutdown()


def _follow(
    work: Work, checkpoints: Checkpoints, options: Options, settings: Settings, say: Callable[[str], None]
) -> Outcome:
    """Starts a coordinator, or finds the one that is at work on these checkpoints, and follows it to the end."""
    stop = threading.Event()
    with ExitStack() as stack:
        stack.enter_context(_interrupts(stop))
        found = _under_way(checkpoints, options, settings)
        if found is not None:
            say("this run is under way on the cluster; following it, with the settings it was started with")
        coordinator = found or registry.begin(
            options.name, lambda name: _start(work, checkpoints, replace(options, name=name))
        )
        job = options.job if found is None else registry.ask(coordinator, "job")
        follower = Follower(coordinator, settings, options.limits)
        stack.callback(_leave, follower, coordinator, directory=str(checkpoints.path), job=job)
        return follower.follow(stop)


def _under_way(checkpoints: Checkpoints, options: Options, settings: Settings) -> Any | None:
    """The coordinator that is at work on these checkpoints, or has done what is asked for while nobody followed.

    One that was interrupted, failed, or did something else is of no use any more: it is dismissed.
    """
    found = registry.running_in(str(checkpoints.path), options.name, start_s=options.limits.start_s)
    while found is not None and registry.ask(found, "has_reached", settings.steps, settings.epochs) is False:
        status = registry.ask(found, "status")
        if status is not None and status["followed"]:  # by somebody who is about to take its result
            time.sleep(LOOK_S)
        else:
            dismiss(found)
            time.sleep(LOOK_S)
        found = registry.running_in(str(checkpoints.path), options.name, start_s=options.limits.start_s)
    return found


def _leave(follower: Follower, coordinator: Any, *, directory: str, job: str | None) -> None:
    """The last one to follow a run ends its coordinator."""
    if not follower.leave():
        dismiss(coordinator, directory=directory, job=job)


def dismiss(coordinator: Any, *, directory: str | None = None, job: str | None = None) -> None:
    """Ends a coordinator, and removes what it keeps beside its checkpoints: its run is over, or should be."""
    directory, job = directory or registry.ask(coordinator, "directory"), job or registry.ask(coordinator, "job")
    with suppress(Exception):
        ray.kill(coordinator)
    if directory is not None and job is not None:
        _clean_up(directory, job)


def _start(work: Work, checkpoints: Checkpoints, options: Options) -> Any:
    try:
        told = pickled((work, checkpoints, options))
    except (TypeError, AttributeError) as error:
        raise InvalidInput(
            f"the model and the data must be such that other processes can get them: {error}; give a source, or a list "
            "of batches"
        ) from None
    size = max(PIECE_BYTES, -(-len(told) // MOST_PIECES))
    pieces = [told[at : at + size] for at in range(0, len(told), size)]
    return Coordinators.options(name=options.name, namespace=registry.NAMESPACE, lifetime="detached").remote(*pieces)


def _clean_up(directory: str, job: str) -> None:
    """Removes what a job keeps beside its checkpoints for as long as it runs."""
    History(directory, job).remove()
    remove_parts(directory, job)


def _result(outcome: Outcome, plan: Plan) -> Result:
    ran = outcome.plan or plan
    steps, seconds = outcome.busy_of
    stages = [
        StageResult(
            type=stage.type, units=stage.units, measured_s=worked / max(1, steps),
            busy=min(1.0, worked / seconds) if seconds > 0 else 0.0,
        )
        for stage, worked in zip(ran.stages, outcome.busy_s or [0.0] * len(ran.stages), strict=True)
    ]  # fmt: skip
    found = outcome.evaluations[-1] if outcome.evaluations and outcome.evaluations[-1]["step"] == outcome.step else None
    samples = outcome.samples - outcome.first_samples
    return Result(
        steps=outcome.step, samples=outcome.samples, losses=outcome.losses,
        auc=outcome.auc if found is None else found["auc"], eval_loss=None if found is None else found["loss"],
        evaluations=outcome.evaluations, throughput=samples / outcome.seconds if outcome.seconds > 0 else 0.0,
        seconds=outcome.seconds, stages=stages, stopped=outcome.stopped, skipped_rows=outcome.skipped_rows, plan=ran,
    )  # fmt: skip
