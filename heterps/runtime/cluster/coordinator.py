"""Who runs a run: starts attempts, has all replicas do some steps at a time, commits checkpoints, decides on failures.

For a checkpoint or an evaluation all replicas stand still at the same step with every update applied, so it is of one
moment; otherwise they go on while a stretch of steps is counted (`stretches.py`). A checkpoint is committed by the
rename of its directory (`heterps.runtime.checkpoint`). After a failure a new attempt starts from the newest one: every
sample counts once in what survives.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from heterps.errors import HeterPSError, Infeasible
from heterps.plan import Plan
from heterps.ps import Client
from heterps.runtime.checkpoint import CheckpointFailed, Checkpoints, State, Store
from heterps.runtime.cluster.attempt import Attempt, NoRoom, Stopped
from heterps.runtime.cluster.elastic import Placing, PlanFor
from heterps.runtime.cluster.history import History
from heterps.runtime.cluster.journal import Journal
from heterps.runtime.cluster.judge import Judge
from heterps.runtime.cluster.lease import Lease, LeaseLost
from heterps.runtime.cluster.nodes import Node, nodes_of
from heterps.runtime.cluster.parts import Part, join_parts
from heterps.runtime.cluster.policy import Died, Event, GiveUp, Limits, Raised, Restart, decide, describe, kind_of
from heterps.runtime.cluster.room import Room
from heterps.runtime.cluster.stretches import Stretches
from heterps.runtime.cluster.tally import Outcome, Tally
from heterps.runtime.cluster.watch import Failed
from heterps.runtime.cluster.work import Work
from heterps.runtime.contents import read_header
from heterps.runtime.tables import bind_tables
from heterps.runtime.trainer import TABLES_EVERY_S, DataEnded
from heterps.storage import remove
from heterps.telemetry.metrics import Auc

log = logging.getLogger("heterps.cluster")

NOTED = ("first_step", "first_samples", "step", "samples", "attempts", "failures", "restarts", "seconds")
"""What a coordinator that takes over must know of the outcome."""


class RunFailed(HeterPSError):
    """A run on the cluster was given up; its last checkpoint is intact."""


class _Moved(Exception):
    """The attempt ends in good order, right after a checkpoint, and another one is to go on elsewhere."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a coordinator is told beside the work."""

    job: str
    """An id of this call, on no other cluster or day."""
    name: str
    """What people call the job; of its cluster alone."""
    plan: Plan
    placing: Placing
    limits: Limits
    plan_for: PlanFor | None = None
    metrics_port: int | None = None
    metrics_host: str | None = None


class Coordinator:
    """Runs `work` to its end. A plain object: the engine puts it into an actor."""

    def __init__(self, work: Work, checkpoints: Checkpoints, options: Options) -> None:
        """Takes the run over from whoever had it."""
        self._work, self._checkpoints, self.options, self._limits = work, checkpoints, options, options.limits
        self._stop, self._noting = threading.Event(), threading.Lock()
        self._in_a_row = 0
        self._since: float | None = None
        """Since when replicas are on a stretch that the coordinator has not asked for yet; None: they stand still."""
        self._history = History(str(checkpoints.path), options.job)
        self._lease = Lease(self._history)
        self._begun = "first_step" in self._lease.found
        """Whether the first step of this run is known; a coordinator that takes over from another one knows it."""
        self.journal = Journal()
        self.outcome = Outcome(**{key: value for key, value in self._lease.found.items() if key in NOTED})
        self.tally = Tally(self.outcome, self.journal, work.settings)
        self.room = Room(options.plan, options.placing, options.limits, self.journal, options.plan_for)
        self.state = "starting"
        """What it does now, in a word or two, for whoever asks."""
        self.nodes: dict[str, Node] = {}
        """The machine of each replica and shard."""
        self.tables: dict[str, dict[str, float]] = {}
        """Newest figures of each table."""
        self.saved: tuple[int, float, float] | None = None
        """Step of the newest checkpoint, when it was committed (seconds since 1970), and how long it took."""
        self._ended: dict[str, Any] | None = self._lease.found.get("ended")
        """How the run ended, if it did: one that takes over then has nothing to do."""
        if self._lease.found.get("stopping"):
            self._stop.set()
        if self._begun and self._ended is None:
            self._failed("the coordinator died", "coordinator")

    @property
    def work(self) -> Work:
        """What the processes of the last attempt are told."""
        return self._work

    @property
    def directory(self) -> str:
        """Where its checkpoints lie."""
        return str(self._checkpoints.path)

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop.is_set()

    def check(self) -> None:
        """Returns if the run is still this one's; a `LeaseLost` if another coordinator has taken it over."""
        self._lease.check()

    def stop(self) -> None:
        """Ends the run where its replicas stand still next, with a checkpoint; whoever takes over knows of it."""
        self._stop.set()
        with suppress(HeterPSError):  # it is asked again if it is not heard
            self._note()

    def run(self) -> Outcome:
        """Tries until it is done, or until it has to be given up."""
        try:
            if self._ended is not None:
                return self._as_it_ended(**self._ended)
            while not self._attempted():
                pass
            self._end(stopped=self.outcome.stopped)
            return self.outcome
        except LeaseLost:
            raise
        except Exception as error:
            self._end(error=str(error))
            raise
        finally:
            self.state = "over"

    def _end(self, *, stopped: str = "", error: str = "") -> None:
        """Notes that the run is over, so that nobody takes it over when this process dies."""
        self._ended = {"stopped": stopped, "error": error}
        try:
            self._note()
        except LeaseLost:
            raise
        except HeterPSError as failure:  # the checkpoint is there; only a death within the next hour would matter
            log.warning("the end of the run could not be noted: %s", failure)

    def _as_it_ended(self, *, stopped: str, error: str) -> Outcome:
        """The outcome of a run whose coordinator died after its end: what the newest checkpoint has of it."""
        if error:
            raise RunFailed(error)
        outcome, header = self.outcome, self._look_up()
        outcome.stopped, outcome.plan = stopped, self.options.plan
        outcome.losses = self._history.losses(outcome.step - outcome.first_step)
        outcome.evaluations = list(header.get("metrics", {}).get("evaluations", []))
        if (counts := header.get("metrics", {}).get("auc")) is not None:
            auc = Auc()
            auc.load(counts)
            outcome.auc = auc.compute()
        return outcome

    def _look_up(self) -> dict[str, Any]:
        """Where a run stands of which nothing was begun here: the header of its newest checkpoint, if there is one."""
        newest = Store(self._checkpoints).newest()
        if newest is None:
            return {}
        header = read_header(newest)
        self.outcome.step, self.outcome.samples = header["step"], header["samples"]
        if not self._begun:
            self.outcome.first_step, self.outcome.first_samples = header["step"], header["samples"]
        if isinstance(newest, Path):
            self.saved = header["step"], newest.stat().st_mtime, 0.0
        return header

    def _attempted(self) -> bool:
        """One attempt; true if the run is over, false if another one is to go on."""
        attempt = None
        try:
            self.check()
            self.outcome.attempts += 1
            found = self.room.find(
                self._work, self._stop, begun=self._begun, step=self.outcome.step, on_wait=self._wait_for_room
            )
            if found is None or self._stop.is_set():
                raise Stopped
            self._work, self.outcome.plan = found, self.room.plan
            attempt = Attempt(
                replace(found, evaluation=None), number=self.outcome.attempts, job=self.options.job,
                limits=self._limits, failures=self._in_a_row, coordinator=self.options.name,
            )  # fmt: skip
            self._try(attempt)
            return True
        except Stopped:
            self.outcome.stopped = "interrupted"
            with suppress(HeterPSError):  # what it cannot read it has not harmed
                self._look_up()
            return True
        except NoRoom as error:
            if not self._begun:
                raise Infeasible(f"no room for the plan: {error}; stop them, plan for less, or --wait longer") from None
            self._recover(Failed(Died("the cluster", f"no room for the plan: {error}")))
        except Failed as failed:
            if attempt is not None:
                attempt.stop()
            self._recover(failed)
        except CheckpointFailed as error:  # a disk may have room again
            self._recover(Failed(Raised("the coordinator", str(error), final=False), error))
        except _Moved as moved:
            log.warning("%s; going on from the last checkpoint", moved)
        finally:
            if attempt is not None:
                attempt.stop()
        return False

    # Between attempts.

    def _wait_for_room(self) -> None:
        self.state = "waiting for machines"

    def _failed(self, what: str, kind: str) -> None:
        self.outcome.failures.append(what)
        self.outcome.restarts[kind] = self.outcome.restarts.get(kind, 0) + 1
        self.journal.event("restart", reason=what, kind=kind, step=self.outcome.step)

    def _recover(self, failed: Failed) -> None:
        """Waits for the next attempt, or raises."""
        self.state = "recovering"
        self._in_a_row += 1
        decision = decide(failed.event, failures=self._in_a_row, limits=self._limits)
        what = describe(failed.event)
        if isinstance(decision, GiveUp):
            if isinstance(failed.event, Raised) and failed.event.final and failed.error is not None:
                raise failed.error
            raise RunFailed(f"{decision.reason}; the last checkpoint is intact") from failed.error
        assert isinstance(decision, Restart)
        self.tally.roll_back()
        self._failed(what, kind_of(failed.event))
        log.warning("%s; starting again from the last checkpoint", what)
        self._stop.wait(decision.after_s)

    # One attempt.

    def _try(self, attempt: Attempt) -> None:
        self.state = "starting"
        patience_s = max(self._limits.wait_s, self._limits.start_s)
        attempt.start(wait_s=patience_s, stop=self._stop, on_wait=self._wait_for_room)
        self.state = "starting"
        self.nodes = nodes_of(self.options.job, self._work.layout)
        with ExitStack() as stack:
            chain, _ = self._work.factory()
            addresses = attempt.shard_addresses
            client = Client(addresses, attempt.keys, retries=2) if addresses else None
            self._aside = stack.enter_context(ThreadPoolExecutor(1, thread_name_prefix="aside"))
            if client is not None:
                stack.callback(client.close, wait=False)  # what waits aside for servers that are gone ends
            stack.callback(attempt.stop)
            self._store = Store(self._checkpoints)
            self._tables = self._do(
                attempt, bind_tables, chain, client=client, seed=self._work.settings.seed,
                fill=self._do(attempt, self._store.newest) is None,
            )  # fmt: skip
            self._judge = Judge(chain, self._work, self.outcome, self.journal)
            self._begin(attempt, scored=chain.score is not None and chain.label is not None)
            self._train(attempt)

    def _do(self, attempt: Attempt, call: Any, *args: Any, **options: Any) -> Any:
        """What a call gives that may wait for servers and disks: in another thread, while all actors are watched."""
        return attempt.watch.future(self._aside.submit(call, *args, **options))

    def _begin(self, attempt: Attempt, *, scored: bool) -> None:
        newest = self._do(attempt, self._store.newest)
        state = State(step=0, samples=0, position=None)
        if newest is not None:
            state = self._do(attempt, self._store.load, newest, self._tables)
        outcome = self.outcome
        if not self._begun:
            outcome.first_step, outcome.first_samples, self._begun = state.step, state.samples, True
        outcome.step, outcome.samples, self._position = state.step, state.samples, state.position
        outcome.losses = self._do(attempt, self._history.losses, state.step - outcome.first_step)
        self._do(attempt, self._note)
        self._metrics = dict(state.metrics)
        outcome.evaluations = list(self._metrics.get("evaluations", []))
        self.tally.begin(self._work.layout, auc=self._metrics.get("auc"), scored=scored)
        self.tally.keep()
        self._tables_told = 0.0
        if self.saved is None and isinstance(newest, Path):
            self.saved = state.step, newest.stat().st_mtime, 0.0
        self._saved_step, self._saved_at = (state.step if newest is not None else None), time.monotonic()
        attempt.begin(None if newest is None else str(newest), state.step, state.samples, state.position)

    def _note(self) -> None:
        """Tells a coordinator that may take over."""
        with self._noting:
            facts = {name: getattr(self.outcome, name) for name in NOTED} if self._begun else {}
            self._lease.note({**facts, "stopping": self._stop.is_set(), "ended": self._ended})

    def _train(self, attempt: Attempt) -> None:
        steps, outcome = self._work.settings.steps, self.outcome
        self._part: Part | None = None
        self._stretches, self._since, ended = self._planned(), None, False
        slow: Event | None = None
        while self._since is not None or not self._is_over(ended=ended):
            ended = self._do_stretch(attempt, halt=slow is not None or self._stop.is_set() or self._is_time())
            self._tell_tables(attempt)
            goes_on = not ended and outcome.step != steps
            slow = slow or (self._straggler() if goes_on else None)
            if self._since is None:
                if self._judge.due:
                    self._evaluate(attempt)
                if self._due():
                    self._save(attempt)
                if goes_on:
                    self._move_if_wise(attempt, slow)
        self._finish(attempt, ended=ended)

    def _is_over(self, *, ended: bool) -> bool:
        """Whether there is nothing more to do, or nothing more shall be done."""
        steps = self._work.settings.steps
        done = steps is not None and self.outcome.step >= steps
        return ended or done or self._judge.no_more_gain or self._stop.is_set()

    def _planned(self) -> Stretches:
        settings = self._work.settings
        every = (self._checkpoints.every_steps, settings.eval_every if self._work.evaluation else None)
        return Stretches(self.outcome.step, steps=settings.steps, every=[one for one in every if one is not None])

    def _finish(self, attempt: Attempt, *, ended: bool) -> None:
        """Evaluates and saves at the end, and says how it ended."""
        steps, outcome = self._work.settings.steps, self.outcome
        if outcome.step == 0 and not self._stop.is_set():
            raise DataEnded("there are no batches to train on")
        self.tally.log()
        self._tell_tables(attempt, at_once=True)
        short = steps is not None and outcome.step < steps
        if self._judge.no_more_gain:
            outcome.stopped = "early"
        elif self._stop.is_set() and not ended and (short or steps is None):
            outcome.stopped = "interrupted"
        else:
            outcome.stopped = "done"
        if outcome.stopped == "done" and not self._judge.judged and outcome.step > 0:
            self._evaluate(attempt)
        if self._saved_step != outcome.step and outcome.step > 0:
            self._save(attempt)
        if short and ended and outcome.stopped == "done":
            raise DataEnded(
                f"the data ended after step {outcome.step} of {steps}; ask for fewer steps, or leave epochs out"
            )

    def _do_stretch(self, attempt: Attempt, *, halt: bool) -> bool:
        """Some steps of all replicas, which go on unless they are to `halt`; true if the data is over."""
        self.state, self._part = "training", None
        before, began = self.outcome.step, self._since or time.monotonic()
        until, allowed = self._stretches.next(before, halt=halt)
        done = attempt.run(until, allowed)
        now = time.monotonic()
        self._since = now if allowed > until and not done[0].ended else None
        self.tally.take(done, began=time.time() - (now - began), seconds=now - began)
        self._position = done[0].position
        self._stretches.took(self.outcome.step - before, now - began)
        return done[0].ended

    def _tell_tables(self, attempt: Attempt, *, at_once: bool = False) -> None:
        """What the tables hold and did, once in a while."""
        if not at_once and time.monotonic() - self._tables_told < TABLES_EVERY_S:
            return
        self._tables_told = time.monotonic()
        for name, table in self._tables.items():
            stats = self._do(attempt, table.stats)
            self.tables[name] = {figure: getattr(stats, figure) for figure in ("rows", "bytes", "hits", "creations")}
            for figure, value in self.tables[name].items():
                self.journal.scalar(f"table/{name}/{figure}", value, step=self.outcome.step)

    # Between stretches.

    def _straggler(self) -> Event | None:
        """A replica without whose machine the run should go on, if there is such."""
        paces = [
            {str(seat): list(self.tally.paces.get(seat, ())) for seat in stage.seats()}
            for stage in self._work.layout.stages
        ]
        busy = {str(seat): share for seat, share in self.tally.busy.items()}
        return self.room.straggling(paces, self.nodes, busy=busy, step=self.outcome.step)

    def _move_if_wise(self, attempt: Attempt, event: Event | None) -> None:
        """Goes on elsewhere if a machine is slow, or, after a checkpoint, if lost machines are back."""
        if event is None and self._saved_step == self.outcome.step:
            event = self.room.returned()
        if event is not None and not self._stop.is_set():
            self._move(attempt, event)

    def _move(self, attempt: Attempt, event: Event) -> None:
        if self._saved_step != self.outcome.step:
            self._save(attempt)
        self._failed(describe(event), kind_of(event))
        raise _Moved(describe(event))

    def _evaluate(self, attempt: Attempt) -> None:
        self.state = "evaluating"
        self.tally.log()
        part = self._gathered(attempt)
        if self._judge.willing:
            self._do(attempt, self._judge.evaluate, part)

    def _due(self) -> bool:
        options = self._checkpoints
        if options.every_steps is not None and self.outcome.step % options.every_steps == 0:
            return True
        return self._is_time()

    def _is_time(self) -> bool:
        minutes = self._checkpoints.every_minutes
        return minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes

    def _gathered(self, attempt: Attempt) -> Part:
        """The dense weights and their optimizers as they are at this step, which all stages write."""
        if self._part is None:
            parts = self._store.path / f".parts-{self.options.job}-{attempt.token}"
            attempt.save(str(parts))
            self._part = self._do(attempt, join_parts, parts, len(self._work.layout.stages))
            self._do(attempt, remove, parts)
        assert self._part is not None
        return self._part

    def _save(self, attempt: Attempt) -> None:
        """Has all parts written, and commits them as one checkpoint."""
        self.state = "saving"
        self.tally.log()
        began, now = time.monotonic(), time.time()
        self._do(attempt, self._commit, self._gathered(attempt))
        seconds = time.monotonic() - began
        self.journal.span(
            "checkpoint", stage=None, step=self.outcome.step, micro_batch=None, began=now, seconds=seconds
        )
        self.tally.keep()
        self.saved = self.outcome.step, time.time(), seconds
        self._saved_step, self._saved_at, self._in_a_row = self.outcome.step, time.monotonic(), 0

    def _commit(self, part: Part) -> None:
        outcome = self.outcome
        self._note()
        known = len(self._history.losses(outcome.step - outcome.first_step))
        self._history.add(outcome.losses[known:])
        metrics = {**self._metrics, "evaluations": outcome.evaluations, "auc": self.tally.auc_state}
        state = State(
            step=outcome.step, samples=outcome.samples, position=self._position, metrics=metrics, dense=part.dense,
            optimizer=part.optimizer,
        )  # fmt: skip
        self._lease.check()
        self._store.save(state, self._tables, before_commit=self._lease.check)  # it may have taken long
