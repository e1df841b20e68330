"""What the stretches of a run add up to: losses, AUC, time, and how fast each replica is."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from heterps.plan import Plan
from heterps.runtime.cluster.journal import Journal
from heterps.runtime.cluster.layout import Layout, Seat
from heterps.runtime.cluster.work import Progress
from heterps.runtime.settings import Settings
from heterps.runtime.trainer import NotFinite
from heterps.telemetry.metrics import Auc

WINDOW_S = 10.0
"""Over which samples a second are averaged."""
PACE_S = 0.5
"""Least seconds of a stretch from which the pace of replicas is taken."""


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
    """Of each stage of the last plan: seconds of computing, the mean of its replicas."""
    busy_of: tuple[int, float] = (0, 0.0)
    """Steps, and seconds, that `busy_s` is of."""
    skipped_rows: int = 0
    stopped: str = "done"
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    """What went wrong, and was made good."""
    restarts: dict[str, int] = field(default_factory=dict)
    """Restarts by reason."""
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    plan: Plan | None = None
    """The last one: a smaller one than was asked for, where machines were lost."""


class Tally:
    """Takes what stretches give, adds it to an outcome, and tells a journal what engine local would tell."""

    def __init__(
        self, outcome: Outcome, journal: Journal, settings: Settings, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.outcome, self._journal, self._settings, self._clock = outcome, journal, settings, clock
        self.auc_state: dict[str, Any] | None = None
        self.busy: dict[Seat, float] = {}
        """Share of the last stretch in which each replica computed."""
        self.paces: dict[Seat, deque[float]] = {}
        """Of each replica: seconds for all samples of a step, one number a stretch."""
        self._logged = -1
        self._kept: Outcome | None = None
        self._speeds: deque[tuple[float, int]] = deque([(clock(), outcome.samples)])

    def begin(self, layout: Layout, *, auc: dict[str, Any] | None, scored: bool) -> None:
        """A new attempt starts from a checkpoint, whose counts for the AUC are given."""
        if len(self.outcome.busy_s) != len(layout.stages) or self._units() != [one.units for one in layout.stages]:
            self.outcome.busy_s, self.outcome.busy_of = [0.0] * len(layout.stages), (0, 0.0)
        self._layout = layout
        self._earlier = Auc() if scored else None
        if self._earlier is not None and auc is not None:
            self._earlier.load(auc)
        self.auc_state = self._earlier.state() if self._earlier is not None else None
        self.busy, self.paces = {}, {}
        self._speeds = deque([(self._clock(), self.outcome.samples)])

    def keep(self) -> None:
        """What there is now survives: a checkpoint has it."""
        outcome = self.outcome
        self._kept = replace(outcome, losses=[], busy_s=list(outcome.busy_s), evaluations=list(outcome.evaluations))
        self._kept_losses = len(outcome.losses)

    def roll_back(self) -> None:
        """What came after the last checkpoint is lost."""
        outcome, kept = self.outcome, self._kept
        if kept is None:
            return
        for name in ("step", "samples", "auc", "seconds", "busy_of", "skipped_rows"):
            setattr(outcome, name, getattr(kept, name))
        outcome.busy_s, outcome.evaluations = list(kept.busy_s), list(kept.evaluations)
        del outcome.losses[self._kept_losses :]

    def _units(self) -> list[int]:
        return [stage.units for stage in self._layout.stages] if hasattr(self, "_layout") else []

    @property
    def samples_per_s(self) -> float:
        """Of the last seconds, pauses included."""
        (t0, first), (t1, last) = self._speeds[0], self._speeds[-1]
        return (last - first) / (t1 - t0) if t1 > t0 else 0.0

    def take(self, done: Sequence[Progress], *, began: float, seconds: float) -> None:
        """Adds a stretch; `began` is in seconds since 1970.

        Raises:
            NotFinite: at a loss that is no number; the outcome stands before the stretch then.
        """
        outcome, seats = self.outcome, self._layout.seats()
        last = [one.losses for one, seat in zip(done, seats, strict=True) if seat.stage == len(self._layout.stages) - 1]
        losses = [sum(parts) for parts in zip(*last, strict=True)]
        for step, loss in enumerate(losses, start=outcome.step):
            if not math.isfinite(loss):
                raise NotFinite(
                    f"the loss of step {step} is {loss}, and the weights are of no use any more; the last checkpoint "
                    "is intact. Lower the learning rates, clip gradients (clip_norm), or look for bad data"
                )
        self._tell_spans(done, began, seconds)
        self._log_steps(done, losses, seconds)
        outcome.losses += losses
        outcome.busy_of = outcome.busy_of[0] + done[0].step - outcome.step, outcome.busy_of[1] + seconds
        outcome.step, outcome.samples = done[0].step, done[0].samples
        outcome.seconds += seconds
        outcome.skipped_rows = done[0].skipped_rows
        self._take_speeds(done, len(losses), seconds)
        if self._earlier is not None and any(one.auc is not None for one in done):
            total = self._merged([one.auc for one in done if one.auc is not None])
            self.auc_state, outcome.auc = total.state(), total.compute()
        every = self._settings.log_every
        if outcome.step // every > (outcome.step - len(losses)) // every:
            self._log_auc(done)

    def log(self) -> None:
        """Tells where the run stands, as engine local does whenever its pipeline is empty."""
        outcome = self.outcome
        if outcome.losses and self._logged != outcome.step:
            self._log(outcome.step, outcome.losses[-1], outcome.samples, outcome.seconds)
            if outcome.auc is not None:
                self._journal.scalar("auc", outcome.auc, step=outcome.step)

    def _log_steps(self, done: Sequence[Progress], losses: Sequence[float], seconds: float) -> None:
        """Loss and AUC of each step that engine local would log; between the stretch's ends time is even."""
        outcome, every = self.outcome, self._settings.log_every
        at: dict[int, list[dict[str, Any]]] = {}
        for one in done:
            for step, state in one.aucs:
                at.setdefault(step, []).append(state)
        for number, loss in enumerate(losses, start=1):
            step = outcome.step + number
            if step % every:
                continue
            part = number / len(losses)
            samples = outcome.samples + round(part * (done[0].samples - outcome.samples))
            self._log(step, loss, samples, outcome.seconds + part * seconds)
            if step in at and self._earlier is not None:
                self._journal.scalar("auc", self._merged(at[step]).compute(), step=step)

    def _log_auc(self, done: Sequence[Progress]) -> None:
        """Where replicas do not say what it was at each step, the AUC is told at the end of the stretch."""
        if not any(one.aucs for one in done) and self.outcome.auc is not None:
            self._journal.scalar("auc", self.outcome.auc, step=self.outcome.step)

    def _log(self, step: int, loss: float, samples: int, seconds: float) -> None:
        self._logged = step
        self._journal.scalar("loss", loss, step=step)
        self._journal.log(samples - self.outcome.first_samples, seconds)

    def _merged(self, states: Sequence[dict[str, Any]]) -> Auc:
        assert self._earlier is not None
        total = Auc()
        for state in [self._earlier.state(), *states]:
            total.merge(state)
        return total

    def _take_speeds(self, done: Sequence[Progress], steps: int, seconds: float) -> None:
        outcome, layout, micro_batches = self.outcome, self._layout, self._settings.micro_batches
        for one, seat in zip(done, layout.seats(), strict=True):
            stage = layout.stages[seat.stage]
            outcome.busy_s[seat.stage] += one.busy_s / stage.replicas
            self.busy[seat] = min(1.0, one.busy_s / seconds) if seconds > 0 else 0.0
            own = len(range(seat.replica, micro_batches, stage.replicas))
            if own and steps and seconds >= PACE_S:
                pace = one.busy_s / steps * micro_batches / own * stage.shares[seat.replica]
                self.paces.setdefault(seat, deque(maxlen=16)).append(pace)
        now = self._clock()
        self._speeds.append((now, outcome.samples))
        while len(self._speeds) > 2 and self._speeds[1][0] < now - WINDOW_S:
            self._speeds.popleft()

    def _tell_spans(self, done: Sequence[Progress], began: float, seconds: float) -> None:
        """What the first replica of each stage did when. Those that do not say it get two spans for the stretch."""
        first, last = self.outcome.step, done[0].step - 1
        if last < first or not self._journal.followed:
            return
        for one, seat in zip(done, self._layout.seats(), strict=True):
            if seat.replica:
                continue
            half = min(one.busy_s, seconds) / 2
            spans = one.spans or (
                ("forward", began, half, first, None), ("update", began + seconds - half, half, last, None),
            )  # fmt: skip
            for name, start, length, step, micro_batch in spans:
                self._journal.span(
                    name, stage=seat.stage, step=step, micro_batch=micro_batch, began=start, seconds=length
                )
