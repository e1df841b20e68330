"""The recorder: what the rest of heterps calls to say what it does and how long it takes."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, SupportsFloat

from heterps.errors import InvalidInput
from heterps.telemetry.ledger import Ledger, Span, Total
from heterps.telemetry.records import Count, Event, Kind, Record, Scalar, Sink, plain
from heterps.telemetry.writer import Writer

FORMAT = "heterps.telemetry/1"
"""In the first event, `start`, with the time of day (`unix_s`). The last event, `end`, says what was dropped."""


class Recorder:
    """Takes spans, counts, scalars and events from any thread and hands them to sinks in the background.

    Recording never waits for a disk and never raises into the training: what cannot be kept is dropped and counted in
    `dropped`. Totals, counts and busy shares are exact whatever is dropped; they need no sink. A recorder without sinks
    has no thread. It is a context manager, and closes itself when it is forgotten or the program ends.

    Args:
        sinks: where records go, such as `JsonLines`, `TensorBoard`, `ChromeTrace`. They belong to one recorder.
        clock: seconds, from any zero, that never run backwards.
        capacity: records that may wait to be written (assumed: half a minute of 2,000 a second).
        every_s: seconds between writes.
    """

    def __init__(
        self,
        sinks: Sequence[Sink] = (),
        *,
        clock: Callable[[], float] = time.perf_counter,
        capacity: int = 65_536,
        every_s: float = 0.25,
    ) -> None:
        if capacity < 1 or not every_s > 0:
            raise InvalidInput(
                f"a recorder needs a capacity of 1 or more and every_s above 0, not {capacity} and {every_s}"
            )
        self._kinds: frozenset[Kind] = frozenset().union(*(sink.kinds for sink in sinks))
        self._ledger = Ledger(clock)
        extra = _Counters(self._ledger).changes if "count" in self._kinds else tuple
        self._writer = Writer(sinks, capacity=capacity, every_s=every_s, extra=extra)
        self._failed = self._ledger.failed = self._writer.failed
        if "span" in self._kinds:
            self._ledger.keep = self._writer.put
        self._finalizer = weakref.finalize(self, self._writer.close)
        self.event("start", format=FORMAT, unix_s=time.time())

    def span(
        self, name: str, *, stage: int | None = None, step: int | None = None, micro_batch: int | None = None
    ) -> Span:
        """A context manager that measures its block. Work of a stage is named as in `WORK`, such as "forward"."""
        return Span(self._ledger, name, stage, step, micro_batch)

    def worked(self, stage: int, name: str, step: int, began: float, ended: float) -> None:
        """A span of a stage's work that was done elsewhere, in seconds of `time.perf_counter`."""
        try:
            self._ledger.add(Span(self._ledger, name, stage, step, None), began, ended)
        except Exception as error:
            self._failed(error)

    def count(self, name: str, n: float = 1) -> None:
        """Adds `n` to a counter."""
        try:
            self._ledger.count(name, n)
        except Exception as error:
            self._failed(error)

    def scalar(self, name: str, value: SupportsFloat, *, step: int) -> None:
        """One value of a curve. A tensor becomes a number here and now: one on a GPU makes the caller wait for it."""
        if "scalar" in self._kinds:
            try:
                self._writer.put(Scalar(self._ledger.now(), name, float(value), int(step)))
            except Exception as error:
                self._failed(error)

    def event(self, name: str, /, **fields: Any) -> None:
        """Something that happened once. Fields are copied as JSON would hold them."""
        if "event" in self._kinds:
            try:
                self._writer.put(Event(self._ledger.now(), name, plain(fields)))
            except Exception as error:
                self._failed(error)

    def now(self) -> float:
        """Seconds since the start, by the recorder's clock: the time in its records."""
        return self._ledger.now()

    def busy(self, stage: int) -> float:
        """Share of the time since the last call for this stage, or since the start, in which the stage worked.

        It works while any of its threads is inside a span whose name is in `WORK`; an open span counts up to now, and
        nested or parallel ones count once, so that the share lies between 0 and 1. For shares over other stretches,
        take differences of `busy_s`; for how replicas fill their time, `totals`.
        """
        return self._ledger.busy(stage)

    def busy_s(self, stage: int) -> float:
        """Seconds since the start in which the stage worked, as for `busy`, whose stretches it leaves alone."""
        return self._ledger.busy_s(stage)

    def totals(self) -> dict[tuple[int | None, str], Total]:
        """Number and summed seconds of the spans that ended, by (stage, name). Overlapping spans all count."""
        return self._ledger.totals()

    def counts(self) -> dict[str, float]:
        """Every counter as it stands."""
        return self._ledger.counts()

    @property
    def dropped(self) -> int:
        """Records lost: the queue was full, a sink failed, the recorder was closed or the record made no sense."""
        return self._writer.dropped

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Waits until all that was recorded is written, at most `timeout_s`; returns whether it is."""
        return self._writer.flush(timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Writes what is left and closes the sinks. Gives up waiting after `timeout_s`, with a warning."""
        if self._finalizer.detach():
            self.event("end", dropped=self.dropped)
            self._writer.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Counters:
    """Records of the counters that changed since they were last asked for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._written: dict[str, float] = {}

    def changes(self) -> list[Record]:
        now, counts = self._ledger.now(), self._ledger.counts()
        changed = [Count(now, name, total) for name, total in counts.items() if total != self._written.get(name)]
        self._written = counts
        return list(changed)
