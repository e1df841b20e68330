"""What spans and counts add up to: totals, and how busy each stage is. Kept in memory, whatever sinks there are."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from types import TracebackType
from typing import Literal, Self

WORK = frozenset({"forward", "backward", "update", "pull", "push"})
"""Names of spans in which a stage is busy; in all others it waits or does what the plan does not count."""


@dataclass(frozen=True, slots=True)
class Total:
    """All spans of one name in one stage."""

    count: int
    seconds: float


class Span:
    """A stretch of time, from entering the `with` block to leaving it. To be entered once."""

    __slots__ = ("_ledger", "duration_s", "micro_batch", "name", "stage", "step", "t", "thread")
    kind: Literal["span"] = "span"
    t: float
    duration_s: float
    thread: int

    def __init__(self, ledger: Ledger, name: str, stage: int | None, step: int | None, micro_batch: int | None) -> None:
        self._ledger = ledger
        self.name = name
        self.stage = stage
        self.step = step
        self.micro_batch = micro_batch

    def __enter__(self) -> Self:
        ledger = self._ledger
        try:
            self.t = now = ledger.clock() - ledger.origin
            if self.name in WORK and self.stage is not None:
                ledger.begin(self.stage, now)
        except Exception as error:
            ledger.failed(error)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ledger = self._ledger
        try:
            self.duration_s = ledger.clock() - ledger.origin - self.t
            ledger.end(self)
            if ledger.keep is not None:
                self.thread = get_ident()
                ledger.keep(self)
        except Exception as trouble:
            ledger.failed(trouble)


class _Busy:
    """Time that a stage spends in work: the union over its threads, so that nested spans and replicas count once."""

    __slots__ = ("active", "marked_s", "marked_t", "seconds", "since", "told")

    def __init__(self) -> None:
        self.active = 0
        """Work spans that are open."""
        self.since = 0.0
        """When the first of them began."""
        self.seconds = 0.0
        """Of closed ones."""
        self.told = 0.0
        """Up to where work that others measured is in it."""
        self.marked_t = 0.0
        self.marked_s = 0.0
        """Time, and `at(time)`, when the share was last asked for."""

    def at(self, now: float) -> float:
        return self.seconds + (now - self.since if self.active else 0.0)


class Ledger:
    """Totals under one lock, held for a dictionary's update and never while waiting for anything else."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.origin, self._counter_origin = clock(), time.perf_counter()
        self.keep: Callable[[Span], None] | None = None
        """Takes each span that ended; None if nobody wants them."""
        self.failed: Callable[[Exception], None] = _ignore
        """Takes what went wrong in recording, which must not reach the training."""
        self._lock = threading.RLock()  # reentrant: a signal's handler may record while its thread does
        self._totals: dict[tuple[int | None, str], tuple[int, float]] = {}
        self._counts: dict[str, float] = {}
        self._busy: dict[int, _Busy] = {}

    def now(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.origin

    def begin(self, stage: int, now: float) -> None:
        """A work span of the stage opens."""
        with self._lock:
            busy = self._busy.get(stage)
            if busy is None:
                busy = self._busy[stage] = _Busy()
            if not busy.active:
                busy.since = now
            busy.active += 1

    def end(self, span: Span) -> None:
        """A span closes."""
        stage, name, duration_s = span.stage, span.name, span.duration_s
        key = stage, name
        with self._lock:
            count, seconds = self._totals.get(key, (0, 0.0))
            self._totals[key] = count + 1, seconds + duration_s
            if stage is not None and name in WORK:
                busy = self._busy[stage]
                busy.active -= 1
                if not busy.active:
                    busy.seconds += span.t + duration_s - busy.since

    def add(self, span: Span, began: float, ended: float) -> None:
        """A span of work that was measured elsewhere, by `time.perf_counter`: told when it is over."""
        span.duration_s = ended - began
        span.t = began - self._counter_origin
        key, stage = (span.stage, span.name), span.stage
        assert stage is not None
        with self._lock:
            count, seconds = self._totals.get(key, (0, 0.0))
            self._totals[key] = count + 1, seconds + span.duration_s
            busy = self._busy.setdefault(stage, _Busy())
            # What is told overlaps at most with what was told last.
            busy.seconds += max(0.0, span.t + span.duration_s - max(span.t, busy.told))
            busy.told = max(busy.told, span.t + span.duration_s)
        if self.keep is not None:
            span.thread = get_ident()
            self.keep(span)

    def count(self, name: str, n: float) -> None:
        """Adds to a counter."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + n

    def counts(self) -> dict[str, float]:
        """Counters as they stand."""
        with self._lock:
            return dict(self._counts)

    def totals(self) -> dict[tuple[int | None, str], Total]:
        """Closed spans by stage and name."""
        with self._lock:
            return {key: Total(*total) for key, total in self._totals.items()}

    def busy_s(self, stage: int) -> float:
        """Seconds in work since the start, what is open included."""
        with self._lock:
            busy = self._busy.get(stage)
            return busy.at(self.now()) if busy else 0.0

    def busy(self, stage: int) -> float:
        """Share of the time since this was last asked, or since the start, that the stage was in work."""
        with self._lock:
            now = self.now()
            busy = self._busy.setdefault(stage, _Busy())
            seconds = busy.at(now)
            elapsed, worked = now - busy.marked_t, seconds - busy.marked_s
            busy.marked_t, busy.marked_s = now, seconds
            return min(max(worked / elapsed, 0.0), 1.0) if elapsed > 0 else 0.0


def _ignore(error: Exception) -> None:
    pass
