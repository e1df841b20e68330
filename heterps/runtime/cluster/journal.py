"""What a coordinator has to tell whoever follows the run: records as a recorder takes them, numbered and kept a while.

The one who follows asks for what came after the last record it has, so that an answer that is lost costs nothing. The
coordinator's process may be another one than before, with another journal: then it starts at that one's beginning.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from heterps.telemetry import WORK, Recorder, Span

Entry = tuple[Any, ...]
"""A kind, and what belongs to it: see `replay`."""
Cursor = tuple[str, int]
"""A journal, and how many of its records are known."""

KEPT = 100_000
"""Records that are kept for someone who does not ask (assumed: some minutes of spans, hours of the rest)."""
FOLLOWED_S = 10.0
"""Seconds without a question after which nobody follows any more: whoever does asks several times a second."""
AT_ONCE = 20_000
"""Records of one answer."""


class Journal:
    """The records of one coordinator's process. For several threads."""

    def __init__(self, *, kept: int = KEPT) -> None:
        self.token = uuid.uuid4().hex[:8]
        self._entries: deque[Entry] = deque(maxlen=kept)
        self._count = 0
        self._known = 0
        self._asked: dict[str, float] = {}
        """When each who follows last asked."""
        self._changed = threading.Condition()

    def scalar(self, name: str, value: float, *, step: int) -> None:
        """One value of a curve."""
        self._add("scalar", name, float(value), step)

    def event(self, name: str, /, **fields: Any) -> None:
        """Something that happened once."""
        self._add("event", name, fields)

    def span(
        self, name: str, *, stage: int | None, step: int, micro_batch: int | None, began: float, seconds: float
    ) -> None:
        """A stretch of time that is over; `began` in seconds since 1970."""
        self._add("span", name, stage, step, micro_batch, began, seconds)

    def log(self, samples: int, seconds: float) -> None:
        """How far the run is: samples and seconds of training since it began (`Settings.on_log`)."""
        self._add("log", samples, seconds)

    def _add(self, *entry: Any) -> None:
        with self._changed:
            self._entries.append(entry)
            self._count += 1
            self._changed.notify_all()

    def after(self, cursor: Cursor | None, *, wait_s: float = 0.0, who: str = "") -> tuple[Cursor, list[Entry]]:
        """Records after a cursor, as soon as there are some or the time is up; None: after what was last told.

        `who` follows from now on, until it `leaves` or does not ask for a while.
        """
        with self._changed:
            if cursor is not None:
                self._known = cursor[1] if cursor[0] == self.token else 0
            start = self._known
            self._asked[who] = time.monotonic()
            self._changed.wait_for(lambda: self._count > start, wait_s)
            skipped = max(0, start - (self._count - len(self._entries)))
            found = [self._entries[at] for at in range(skipped, min(len(self._entries), skipped + AT_ONCE))]
            first = self._count - len(self._entries) + skipped
            return (self.token, first + len(found)), found

    @property
    def followed(self) -> bool:
        """Whether somebody asked lately."""
        latest = max(list(self._asked.values()), default=-float("inf"))
        return time.monotonic() - latest < FOLLOWED_S

    def leaves(self, who: str) -> bool:
        """One who followed has all it needs; whether others still follow."""
        self._asked.pop(who, None)
        return self.followed


def replay(entries: Sequence[Entry], recorder: Recorder, *, on_log: Callable[[int, float], None] | None = None) -> None:
    """Records what a journal told, as if it had happened here; `on_log` is called as in engine local."""
    for kind, *rest in entries:
        if kind == "scalar":
            name, value, step = rest
            recorder.scalar(name, value, step=step)
        elif kind == "event":
            name, fields = rest
            recorder.event(name, **fields)
        elif kind == "span":
            _add_span(recorder, *rest)
        elif kind == "log" and on_log is not None:
            on_log(*rest)


def _add_span(
    recorder: Recorder, name: str, stage: int | None, step: int, micro_batch: int | None, began: float, seconds: float
) -> None:
    """A span that was measured elsewhere: it counts in totals and busy shares as if its block had been here."""
    ledger = recorder._ledger
    span = Span(ledger, name, stage, step, micro_batch)
    span.t, span.duration_s = max(0.0, recorder.now() - (time.time() - began)), seconds
    span.thread = stage if stage is not None else 0
    if stage is not None and name in WORK:
        ledger.begin(stage, span.t)
    ledger.end(span)
    if ledger.keep is not None:
        ledger.keep(span)
