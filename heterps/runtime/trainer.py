"""A run: feeds the pipeline, watches the losses, and stops between steps to evaluate and to save."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from heterps.errors import HeterPSError, InvalidInput
from heterps.models import Batch, Chain, Loss, batch_size
from heterps.plan import Plan
from heterps.runtime.build import build_stages, look_ahead
from heterps.runtime.checkpoint import CheckpointFailed, State, Store
from heterps.runtime.evaluation import Evaluation, evaluate
from heterps.runtime.feed import Feed
from heterps.runtime.pipeline import Pipeline
from heterps.runtime.placement import cores, place
from heterps.runtime.result import Result, StageResult
from heterps.runtime.settings import Settings
from heterps.runtime.stage import named_states
from heterps.runtime.tables import bind_tables, fail_all, shared_pushes
from heterps.store import SparseTable
from heterps.telemetry import Progress, Recorder
from heterps.telemetry.metrics import Auc

CHECKED_STEPS = 20
"""Steps of a run whose labels are looked at: enough to see what they are."""
TABLES_EVERY_S = 1.0
"""Least time between two looks at the tables' statistics, each of which waits for a pull or push that is under way."""


class NotFinite(HeterPSError):
    """The loss is no number any more."""


class DataEnded(HeterPSError):
    """The data ended before the steps that were asked for."""


class Trainer:
    """One run of a chain over data by a plan. Use `heterps.train`."""

    def __init__(self, chain: Chain, data: Any, plan: Plan | None, settings: Settings) -> None:
        self._chain, self._data, self._plan, self._settings = chain, data, plan, settings
        self._stop = threading.Event()
        self._losses: list[float] = []
        self._evaluations: list[Evaluation] = []
        self._auc = Auc() if chain.score is not None and chain.label is not None else None
        self._step = self._samples = 0
        self._saved_step: int | None = None
        self._position: Any = None
        self._outside_s = 0.0  # evaluations and checkpoints
        self._tables_logged = time.monotonic()
        self._reason = "done"

    def run(self) -> Result:
        """Trains to the end, and says how it went."""
        settings, chain = self._settings, self._chain
        specs = place(chain, self._plan, settings.devices)
        # Each of a stage's GPUs has micro-batches of its own.
        settings = replace(settings, micro_batches=max(settings.micro_batches, *(len(one.devices) for one in specs)))
        self._settings = settings
        threads = max([spec.threads for spec in specs if spec.device.type == "cpu"], default=cores())
        self._tables = bind_tables(chain, client=settings.client, seed=settings.seed, threads=threads)
        shared = shared_pushes(chain, self._tables)
        self._recorder = settings.recorder or Recorder()
        ahead = look_ahead(specs)
        self._checkpoints = Store(settings.checkpoints) if settings.checkpoints is not None else None
        optimizers = self._resume()  # before the stages are made: they may take rows with them to a GPU
        self._stages = build_stages(chain, specs, shared, settings, self._score, ahead=ahead, exchanges=True)
        for stage in self._stages:
            stage.load_optimizer(optimizers)
        for push in shared.values():
            push.start_at(self._step)
        with ExitStack() as stack:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            stop = stack.enter_context(_interrupts(self._stop))
            epochs = settings.epochs or (None if settings.steps else 1)
            self._feed = stack.enter_context(
                Feed(self._data, batch_size=settings.batch_size, epochs=epochs, seed=settings.seed,
                     position=self._position)
            )  # fmt: skip
            self._pipeline = Pipeline(
                self._stages, first_step=self._step, staleness=settings.steps_ahead,
                clip_norm=None if any(stage.applies_at_once for stage in self._stages) else settings.clip_norm,
                schedule=settings.schedule, recorder=self._recorder, ahead=ahead, seed=self._seed(),
                on_failure=lambda: fail_all(shared),
            )  # fmt: skip
            stack.callback(self._finish)
            self._progress = stack.enter_context(
                Progress(total=settings.steps, samples=self._samples, quiet=not settings.progress)
            )
            self._began = time.perf_counter()
            self._train(stop)
            seconds = self._seconds()
            return self._result(seconds)

    def _seed(self) -> int | None:
        """Of layers that draw, where stages draw at the same time; otherwise they draw as plain PyTorch's do."""
        settings = self._settings
        together = len(self._stages) > 1 and (settings.micro_batches > 1 or settings.steps_ahead > 0)
        return settings.seed if together else None

    def _train(self, stop: threading.Event) -> None:
        settings = self._settings
        self._first_samples, first = self._samples, self._step
        saved = time.monotonic()
        for read in self._feed if settings.steps is None or self._step < settings.steps else ():
            self._chain.check_batch(read.batch)
            if self._step - first < CHECKED_STEPS:
                check_labels(self._chain, read.batch)
            self._pipeline.submit(read.batch, settings.micro_batches)
            self._step += 1
            self._samples += batch_size(read.batch)
            self._position = read.position
            self._watch()
            due = self._checkpoint_due(saved)
            if due or self._evaluation_due():
                self._settle()
                if self._evaluation_due():
                    self._evaluate()
                if due:
                    self._save()
                    saved = time.monotonic()
            if self._no_more_gain():
                self._reason = "early"
            if stop.is_set():
                self._reason = "interrupted"
            if self._reason != "done" or self._step == settings.steps:
                break
        if self._step == 0:
            raise DataEnded("there are no batches to train on")
        self._settle()
        if settings.evaluation is not None and self._reason == "done" and not self._evaluated():
            self._evaluate()
        if self._checkpoints is not None and self._saved_step != self._step:
            self._save()
        if settings.steps is not None and self._step < settings.steps and self._reason == "done":
            raise DataEnded(
                f"the data ended after step {self._step} of {settings.steps}; ask for fewer steps, or leave epochs out"
            )

    def _settle(self) -> None:
        """Waits until every step is applied, and looks at its loss."""
        self._pipeline.drain()
        for table in self._tables.values():
            table.wait()
        self._watch(all_of_them=True)
        broken = next((name for stage in self._stages if (name := stage.not_finite()) is not None), None)
        if broken is not None:
            raise NotFinite(f"the weight {broken!r} is no number any more after step {self._step}; {self._advice()}")

    def _watch(self, *, all_of_them: bool = False) -> None:
        """Takes the losses of completed steps; stops the run at one that is no number."""
        done = self._pipeline.losses(wait=all_of_them)
        for step in sorted(done):
            loss = float(done[step])
            if not math.isfinite(loss):
                raise NotFinite(
                    f"the loss of step {step} is {loss}, and the weights are of no use any more; {self._advice()}"
                )
            self._losses.append(loss)
        if self._auc is not None:
            self._auc.count()
        if self._losses and (all_of_them or self._step % self._settings.log_every == 0):
            self._log()
            self._log_tables(at_once=all_of_them)

    def _advice(self) -> str:
        """What there is left, and what to do, when weights are no numbers any more."""
        kept = "the last checkpoint is intact" if self._checkpoints is not None else "there is no checkpoint"
        return (
            f"{kept}. Lower the learning rates, clip gradients (clip_norm), or look for bad values in the data, and "
            "for layers whose gradient is not finite (a square root of 0)"
        )

    def _log(self) -> None:
        loss = self._losses[-1]
        auc = self._auc.compute() if self._auc is not None else None
        self._recorder.scalar("loss", loss, step=self._step)
        if auc is not None:
            self._recorder.scalar("auc", auc, step=self._step)
        busy = {stage.spec.number: self._recorder.busy(stage.spec.number) for stage in self._stages}
        self._progress.update(step=self._step, samples=self._samples, loss=loss, auc=auc, busy=busy)
        if self._settings.on_log is not None:
            self._settings.on_log(self._samples - self._first_samples, self._seconds())

    def _seconds(self) -> float:
        """Of training, without evaluations and checkpoints."""
        return time.perf_counter() - self._began - self._outside_s

    def _log_tables(self, *, at_once: bool) -> None:
        """What the tables of this process hold and did, once in a while and whenever the pipeline is empty."""
        if not at_once and time.monotonic() - self._tables_logged < TABLES_EVERY_S:
            return
        self._tables_logged = time.monotonic()
        for name, table in self._tables.items():
            if isinstance(table, SparseTable):
                stats = table.stats()
                for figure in ("rows", "bytes", "hits", "creations"):
                    self._recorder.scalar(f"table/{name}/{figure}", getattr(stats, figure), step=self._step)

    def _score(self, scores: Tensor, labels: Tensor) -> None:
        if self._auc is not None:
            self._auc.update(scores, labels)

    # Between steps.

    def _evaluation_due(self) -> bool:
        every = self._settings.eval_every
        if self._settings.evaluation is None or every is None or self._step % every:
            return False
        return not self._evaluated()

    def _evaluated(self) -> bool:
        """Whether the last evaluation is of this step."""
        return bool(self._evaluations) and self._evaluations[-1].step == self._step

    def _evaluate(self) -> None:
        began = time.perf_counter()
        settings = self._settings
        with self._recorder.span("evaluate", step=self._step):
            for stage in self._stages:
                stage.flush()
            found = evaluate(
                self._chain, settings.evaluation, step=self._step, batch_size=settings.batch_size,
                batches=settings.eval_batches,
            )  # fmt: skip
        self._evaluations.append(found)
        self._recorder.event("evaluation", **found.to_dict())
        self._recorder.scalar("eval/loss", found.loss, step=self._step)
        if found.auc is not None:
            self._recorder.scalar("eval/auc", found.auc, step=self._step)
        self._outside_s += time.perf_counter() - began

    def _no_more_gain(self) -> bool:
        rule = self._settings.early_stop
        if rule is None or len(self._evaluations) <= rule.patience:
            return False
        gains = [found.merit for found in self._evaluations]
        best_before = max(gains[: -rule.patience])
        return max(gains[-rule.patience :]) <= best_before + rule.min_gain

    def _checkpoint_due(self, saved: float) -> bool:
        if self._checkpoints is None:
            return False
        options = self._checkpoints.options
        if options.every_steps is not None and self._step % options.every_steps == 0:
            return True
        return options.every_minutes is not None and time.monotonic() - saved >= 60 * options.every_minutes

    def _save(self) -> None:
        assert self._checkpoints is not None
        began = time.perf_counter()
        with self._recorder.span("checkpoint", step=self._step):
            for stage in self._stages:
                stage.flush()
            dense = {name: value.detach().cpu() for name, value in self._chain.state_dict().items()}
            metrics = {
                "auc": self._auc.state() if self._auc is not None else None,
                "evaluations": [found.to_dict() for found in self._evaluations],
            }
            state = State(step=self._step, samples=self._samples, position=self._position, metrics=metrics, dense=dense,
                          optimizer=named_states(self._stages))  # fmt: skip
            self._checkpoints.save(state, self._tables)
        self._saved_step = self._step
        self._outside_s += time.perf_counter() - began

    def _resume(self) -> Mapping[str, Mapping[str, Any]]:
        """Takes up the newest checkpoint, if there is one; gives the optimizers' state by parameter."""
        newest = self._checkpoints.newest() if self._checkpoints is not None else None
        if newest is None or self._checkpoints is None:
            return {}
        if not self._settings.resume:
            raise InvalidInput(f"{newest.parent} holds checkpoints of another run; resume it, or choose another path")
        state = self._checkpoints.load(newest, self._tables)
        try:
            self._chain.load_state_dict(dict(state.dense))
        except RuntimeError as error:
            raise CheckpointFailed(f"checkpoint {newest} is of another model: {error}") from None
        if self._auc is not None and state.metrics.get("auc") is not None:
            self._auc.load(state.metrics["auc"])
        self._evaluations = [Evaluation(**found) for found in state.metrics.get("evaluations", [])]
        self._step, self._samples, self._position = state.step, state.samples, state.position
        self._saved_step = self._step
        return state.optimizer

    def _finish(self) -> None:
        self._pipeline.close()
        for stage in self._stages:
            # After a failure a GPU may refuse everything: what failed is to be told, not that.
            with suppress(RuntimeError) if self._pipeline.failed else nullcontext():
                stage.finish()

    def _result(self, seconds: float) -> Result:
        totals = self._recorder.totals()
        stages = []
        for stage in self._stages:
            spec, steps = stage.spec, max(1, len(self._losses))
            worked = sum(total.seconds for (number, _), total in totals.items() if number == spec.number)
            step_s = stage.device_s / stage.device_steps if stage.device_steps else worked / steps
            stages.append(
                StageResult(type=spec.type, units=spec.units, measured_s=step_s,
                            busy=min(1.0, step_s * steps / seconds) if seconds > 0 else 0.0)
            )  # fmt: skip
        last = self._evaluations[-1] if self._evaluations and self._evaluations[-1].step == self._step else None
        own_auc = self._auc.compute() if self._auc is not None else None
        samples = self._samples - self._first_samples
        return Result(
            steps=self._step, samples=self._samples, losses=self._losses, auc=last.auc if last else own_auc,
            eval_loss=last.loss if last else None, evaluations=[found.to_dict() for found in self._evaluations],
            throughput=samples / seconds if seconds > 0 else 0.0, seconds=seconds, stages=stages, stopped=self._reason,
            skipped_rows=self._feed.skipped, plan=self._plan,
        )  # fmt: skip


def check_labels(chain: Chain, batch: Batch) -> None:
    """Labels of the losses here lie between 0 and 1; -1 and 1, or counts, would train on nonsense without a word."""
    label = batch.get(chain.label or "")
    if isinstance(chain.layers[-1].module, Loss) and isinstance(label, Tensor) and label.numel():
        low, high = float(label.min()), float(label.max())
        if low < 0 or high > 1:
            raise InvalidInput(f"labels are 0 or 1, or between; {chain.label!r} has {low:g} to {high:g}")


@contextmanager
def _interrupts(stop: threading.Event) -> Iterator[threading.Event]:
    """Within it the first SIGINT or SIGTERM asks the run to save and end; a second one is the usual interrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}

    def ask(kind: int, _: Any) -> None:
        stop.set()
        signal.signal(kind, before[signal.Signals(kind)])

    try:
        for kind in before:
            signal.signal(kind, ask)
        yield stop
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
