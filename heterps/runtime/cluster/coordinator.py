"""Who runs a run: starts attempts, has all replicas do some steps at a time, commits checkpoints, decides on failures.

Between two stretches of steps all replicas stand at the same step with every update applied, so a checkpoint is of one
moment. It is committed by the rename of its directory (`heterps.runtime.checkpoint`). After a failure a new attempt
starts from the newest one: every sample counts once in what survives.
"""

from __future__ import annotations

import logging
import math
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterps.errors import HeterPSError
from heterps.ps import Client
from heterps.runtime.checkpoint import Checkpoints, State, Store
from heterps.runtime.cluster.attempt import Attempt
from heterps.runtime.cluster.history import History
from heterps.runtime.cluster.parts import join_parts
from heterps.runtime.cluster.policy import GiveUp, Limits, Raised, decide, describe
from heterps.runtime.cluster.watch import Failed
from heterps.runtime.cluster.work import Progress, Work
from heterps.runtime.tables import bind_tables
from heterps.runtime.trainer import DataEnded, NotFinite
from heterps.telemetry.metrics import Auc

log = logging.getLogger("heterps.cluster")

STRETCH_S = 2.0
"""Seconds that replicas work between two stops: what a stop costs vanishes in it, and a Ctrl-C is heard soon."""
FIRST_STRETCH = 4
"""Steps of the first stretch, from which the speed is known."""


class RunFailed(HeterPSError):
    """A run on the cluster was given up; its last checkpoint is intact."""


@dataclass(slots=True)
class Outcome:
    """How far a run is, and how it went."""

    first_step: int = 0
    step: int = 0
    samples: int = 0
    first_samples: int = 0
    losses: list[float] = field(default_factory=list)
    auc: float | None = None
    seconds: float = 0.0
    """Of stretches that survived."""
    busy_s: list[float] = field(default_factory=list)
    """Of each stage: seconds of computing, the mean of its replicas."""
    skipped_rows: int = 0
    stopped: str = "done"
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    """What went wrong, and was made good."""


class Coordinator:
    """Runs `work` to its end. A plain object: the engine puts it into an actor."""

    def __init__(self, work: Work, checkpoints: Checkpoints, *, job: str, limits: Limits, wait_s: float) -> None:
        self._work, self._checkpoints, self._job, self._limits = work, checkpoints, job, limits
        self._wait_s = wait_s
        self._stop = threading.Event()
        self._in_a_row = 0
        self._stretch = FIRST_STRETCH
        self._history = History(Path(checkpoints.path), job)
        facts = self._history.facts()
        self._begun = facts is not None
        """Whether the first step of this run is known; a coordinator that takes over from another one knows it."""
        self.outcome = Outcome(**(facts or {}))
        if self._begun:
            self.outcome.failures.append("the coordinator died")

    def stop(self) -> None:
        """Ends the run after the stretch that is under way, with a checkpoint."""
        self._stop.set()

    def run(self) -> Outcome:
        """Tries until it is done, or until it has to be given up."""
        while True:
            self.outcome.attempts += 1
            attempt = Attempt(self._work, number=self.outcome.attempts, job=self._job, limits=self._limits)
            try:
                self._try(attempt)
                return self.outcome
            except Failed as failed:
                attempt.stop()
                self._recover(failed)
            finally:
                attempt.stop()

    def _recover(self, failed: Failed) -> None:
        """Waits for the next attempt, or raises."""
        self._in_a_row += 1
        decision = decide(failed.event, failures=self._in_a_row, limits=self._limits)
        what = describe(failed.event)
        if isinstance(decision, GiveUp):
            if isinstance(failed.event, Raised) and failed.event.final and failed.error is not None:
                raise failed.error
            raise RunFailed(f"{decision.reason}; the last checkpoint is intact") from failed.error
        self.outcome.failures.append(what)
        log.warning("%s; starting again from the last checkpoint", what)
        self._stop.wait(decision.after_s)

    def _try(self, attempt: Attempt) -> None:
        first = self.outcome.attempts == 1
        attempt.start(wait_s=self._wait_s if first else max(self._wait_s, self._limits.start_s))
        with ExitStack() as stack:
            chain, _ = self._work.factory()
            addresses = attempt.shard_addresses
            client = Client(addresses, attempt.keys, retries=2) if addresses else None
            if client is not None:
                stack.callback(client.close)
            stack.callback(attempt.stop)  # before the client waits for answers of servers that may be gone
            saver = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="checkpoint"))
            stack.callback(attempt.stop)
            self._saver = saver
            self._tables = attempt.watch.future(
                saver.submit(bind_tables, chain, client=client, seed=self._work.settings.seed)
            )
            self._store = Store(self._checkpoints)
            self._begin(attempt, scored=chain.score is not None and chain.label is not None)
            self._train(attempt)

    def _begin(self, attempt: Attempt, *, scored: bool) -> None:
        newest = self._store.newest()
        state = State(step=0, samples=0, position=None)
        if newest is not None:
            state = attempt.watch.future(self._saver.submit(self._store.load, newest, self._tables))
        outcome = self.outcome
        if not self._begun:
            outcome.first_step, outcome.first_samples, self._begun = state.step, state.samples, True
        outcome.step, outcome.samples, self._position = state.step, state.samples, state.position
        outcome.losses = self._history.losses(state.step - outcome.first_step)
        self._note()
        self._metrics = dict(state.metrics)
        self._earlier_auc = Auc() if scored else None
        if self._earlier_auc is not None and self._metrics.get("auc") is not None:
            self._earlier_auc.load(self._metrics["auc"])
        self._auc_state = self._earlier_auc.state() if self._earlier_auc is not None else None
        self._saved_step, self._saved_at = (state.step if newest is not None else None), time.monotonic()
        attempt.begin(None if newest is None else str(newest), state.step, state.samples, state.position)

    def _note(self) -> None:
        """Tells a coordinator that may take over."""
        names = ("first_step", "first_samples", "attempts", "failures")
        self._history.note({name: getattr(self.outcome, name) for name in names})

    def _train(self, attempt: Attempt) -> None:
        steps, outcome = self._work.settings.steps, self.outcome
        ended = False
        while not ended and (steps is None or outcome.step < steps) and not self._stop.is_set():
            began = time.monotonic()
            done = attempt.run(self._until())
            seconds, before = time.monotonic() - began, outcome.step
            self._take(done, seconds)
            ended = done[0].ended
            if seconds > 0 and outcome.step > before:
                self._stretch = max(1, min(2 * self._stretch, int(STRETCH_S * (outcome.step - before) / seconds)))
            if self._due():
                self._save(attempt)
        if outcome.step == 0 and not self._stop.is_set():
            raise DataEnded("there are no batches to train on")
        if self._saved_step != outcome.step and outcome.step > 0:
            self._save(attempt)
        short = steps is not None and outcome.step < steps
        if short and ended:
            raise DataEnded(
                f"the data ended after step {outcome.step} of {steps}; ask for fewer steps, or leave epochs out"
            )
        outcome.stopped = "interrupted" if self._stop.is_set() and not ended and (short or steps is None) else "done"

    def _until(self) -> int:
        """The end of the next stretch: at a checkpoint, or when some time has passed."""
        step, every, steps = self.outcome.step, self._checkpoints.every_steps, self._work.settings.steps
        ends = [step + self._stretch]
        if every is not None:
            ends.append((step // every + 1) * every)
        if steps is not None:
            ends.append(steps)
        return min(ends)

    def _take(self, done: list[Progress], seconds: float) -> None:
        """Notes what a stretch gave."""
        outcome, layout = self.outcome, self._work.layout
        last = [progress.losses for progress, seat in self._seated(done) if seat.stage == len(layout.stages) - 1]
        for step, parts in enumerate(zip(*last, strict=True), start=outcome.step):
            loss = sum(parts)
            if not math.isfinite(loss):
                raise NotFinite(
                    f"the loss of step {step} is {loss}, and the weights are of no use any more; the last checkpoint "
                    "is intact. Lower the learning rates, clip gradients (clip_norm), or look for bad data"
                )
            outcome.losses.append(loss)
        outcome.step, outcome.samples, self._position = done[0].step, done[0].samples, done[0].position
        outcome.seconds += seconds
        outcome.skipped_rows = done[0].skipped_rows
        outcome.busy_s = outcome.busy_s or [0.0] * len(layout.stages)
        for progress, seat in self._seated(done):
            outcome.busy_s[seat.stage] += progress.busy_s / layout.stages[seat.stage].replicas
        if self._earlier_auc is not None:
            total = Auc()
            for state in [self._earlier_auc.state(), *(one.auc for one in done if one.auc is not None)]:
                total.merge(state)
            self._auc_state, outcome.auc = total.state(), total.compute()

    def _seated(self, done: list[Progress]) -> Any:
        return zip(done, self._work.layout.seats(), strict=True)

    def _due(self) -> bool:
        options = self._checkpoints
        if options.every_steps is not None and self.outcome.step % options.every_steps == 0:
            return True
        return options.every_minutes is not None and time.monotonic() - self._saved_at >= 60 * options.every_minutes

    def _save(self, attempt: Attempt) -> None:
        """Has all parts written, and commits them as one checkpoint."""
        parts = Path(self._store.path) / f".parts-{self._job}-{attempt.token}"
        attempt.save(str(parts))
        attempt.watch.future(self._saver.submit(self._commit, parts))
        self._saved_step, self._saved_at, self._in_a_row = self.outcome.step, time.monotonic(), 0

    def _commit(self, parts: Path) -> None:
        outcome = self.outcome
        known = len(self._history.losses(outcome.step - outcome.first_step))
        self._history.add(outcome.losses[known:])
        joined = join_parts(parts, len(self._work.layout.stages))
        metrics = {"evaluations": [], **self._metrics, "auc": self._auc_state}
        state = State(
            step=outcome.step, samples=outcome.samples, position=self._position, metrics=metrics, dense=joined.dense,
            optimizer=joined.optimizer,
        )  # fmt: skip
        self._store.save(state, self._tables)
        shutil.rmtree(parts, ignore_errors=True)
