"""Reads `telemetry.jsonl` as it grows: each byte once, in memory that does not depend on the file's size.

Curves are thinned, spans only added up. Where in the file which step is stands in a sparse index, so that the spans of
a few steps, for the timeline, are read again from there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heterps.report.curves import Curve
from heterps.telemetry import WORK

MOST_NAMES = 200
"""Curves and counters; what comes after is passed over."""
MOST_MARKS = 1024
"""Of the index."""
READ_BYTES = 1 << 20


class Span(NamedTuple):
    """A stretch of work; `stage` and `step` are None for what belongs to none."""

    stage: int | None
    name: str
    t: float
    duration_s: float
    step: int | None
    micro_batch: int | None

    @property
    def end(self) -> float:
        """When it ended."""
        return self.t + self.duration_s


@dataclass(slots=True)
class Total:
    """All spans of one name in one stage."""

    count: int = 0
    seconds: float = 0.0


class Session:
    """What one process recorded. A run that was resumed has several, of which the last one's times are shown."""

    def __init__(self, unix_s: float | None) -> None:
        self.unix_s = unix_s
        self.last_t = 0.0
        self.ended = False
        self.dropped = 0
        self.totals: dict[tuple[int, str], Total] = {}
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.done = Curve(most=200)
        """(seconds, steps done), from which throughput follows."""
        self.marks: list[tuple[int, int]] = []
        """(step, byte): a span of that step begins there."""
        self._every, self._waiting = 1, 0

    @property
    def steps(self) -> int:
        """Steps of this session that have begun."""
        return 0 if self.first_step is None or self.last_step is None else self.last_step - self.first_step + 1

    def add(self, span: Span, offset: int) -> None:
        """One more span, which begins at a byte of the file."""
        stage, name, t, duration_s, step, _ = span
        if t + duration_s > self.last_t:
            self.last_t = t + duration_s
        if stage is None or step is None:
            return
        total = self.totals.get((stage, name))
        if total is None:
            total = self.totals[stage, name] = Total()
        total.count += 1
        total.seconds += duration_s
        if self.first_step is None or self.last_step is None:
            self.first_step = self.last_step = step
        elif step > self.last_step:
            self.last_step = step
        elif step < self.first_step:
            self.first_step = step
        if name == "update" and (self.done.last is None or step + 1 > self.done.last[1]):
            self.done.add(t + duration_s, step + 1)
        if self._waiting:
            self._waiting -= 1
            return
        if len(self.marks) >= MOST_MARKS:
            del self.marks[1::2]
            self._every *= 2
        self.marks.append((step, offset))
        self._waiting = self._every - 1


class TelemetryReader:
    """Follows one file. `poll` reads what is new; the rest is what was found so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._forget()

    def _forget(self) -> None:
        self._offset = 0
        self._head = b""
        self.session = self._before = Session(None)
        self.sessions = 0
        self.started_unix_s: float | None = None
        self.curves: dict[str, Curve] = {}
        self.counts: dict[str, float] = {}
        self.damaged = 0
        """Lines that are no records."""

    def poll(self, *, most_bytes: int | None = None) -> bool:
        """Reads on, at most so many bytes; false if more is there. A file that was begun anew is read anew."""
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                if size < self._offset or file.read(len(self._head)) != self._head:
                    self._forget()
                file.seek(0)
                if len(self._head) < 256:
                    self._head = file.read(min(256, size))
                end = size if most_bytes is None else min(size, self._offset + most_bytes)
                for offset, line in _lines(file, self._offset, end):
                    self._take(line, offset)
                    self._offset = offset + len(line)
                return end == size
        except FileNotFoundError:
            self._forget()
            return True

    def spans(self, first: int, last: int, *, ahead: int = 8, most: int = 20_000) -> list[Span]:
        """Spans of the steps first … last of the last session, read again; at most `most` of them.

        Stages may be `ahead` steps apart, so it is read from a little before to a little behind.
        """
        before = [offset for step, offset in self.session.marks if step <= first - ahead]
        start = before[-1] if before else (self.session.marks[0][1] if self.session.marks else 0)
        found: list[Span] = []
        try:
            with self.path.open("rb") as file:
                for _, line in _lines(file, start, self._offset):
                    record = _parse(line)
                    if record is None or record.get("kind") != "span" or (span := _span(record)) is None:
                        continue
                    if span.stage is not None and span.step is not None and span.step > last + ahead:
                        break
                    if span.stage is None or span.step is None or first <= span.step <= last:
                        found.append(span)
                        if len(found) >= most:
                            break
        except FileNotFoundError:
            return []
        return found

    def _take(self, line: bytes, offset: int) -> None:
        record = _parse(line)
        if record is None:
            self.damaged += 1
            return
        kind = record.get("kind")
        if kind == "span":  # nearly all of them
            if (span := _span(record)) is not None:
                self.session.add(span, offset)
            return
        name, t = str(record.get("name")), _number(record.get("t")) or 0.0
        if kind == "event" and name == "start":
            fields = record.get("fields")
            self._before = self.session
            self.session = Session(_number(fields.get("unix_s")) if isinstance(fields, dict) else None)
            self.sessions += 1
            if self.started_unix_s is None:
                self.started_unix_s = self.session.unix_s
        elif kind == "event" and name == "end":
            if self._before.steps and not self.session.steps:  # there was nothing left to do
                self.session, self.sessions = self._before, self.sessions - 1
            self.session.ended = True
            return
        elif kind == "scalar":
            value, step = _number(record.get("value")), record.get("step")
            if value is not None and isinstance(step, int) and (name in self.curves or len(self.curves) < MOST_NAMES):
                self.curves.setdefault(name, Curve()).add(step, value)
        elif kind == "count" and (name in self.counts or len(self.counts) < MOST_NAMES):
            self.counts[name] = _number(record.get("total")) or 0.0
        self.session.last_t = max(self.session.last_t, t)

    def work_s(self) -> dict[int, float]:
        """Seconds of work of each stage in the last session."""
        found: dict[int, float] = {}
        for (stage, name), total in self.session.totals.items():
            if name in WORK:
                found[stage] = found.get(stage, 0.0) + total.seconds
        return dict(sorted(found.items()))


def _lines(file: Any, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of whole lines between two bytes; a line that `end` cuts is left for later."""
    file.seek(start)
    rest, at = b"", start
    position = start
    while position < end:
        block = file.read(min(READ_BYTES, end - position))
        if not block:
            return
        position += len(block)
        *whole, rest = (rest + block).split(b"\n")
        for line in whole:
            yield at, line + b"\n"
            at += len(line) + 1


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line.decode())
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _span(record: dict[str, Any]) -> Span | None:
    get = record.get
    t, duration_s, stage, step, micro_batch = get("t"), get("duration_s"), get("stage"), get("step"), get("micro_batch")
    if not isinstance(t, int | float) or not isinstance(duration_s, int | float) or not 0 <= t + duration_s < math.inf:
        return None
    return Span(
        stage if isinstance(stage, int) else None, str(get("name")), t, duration_s,
        step if isinstance(step, int) else None, micro_batch if isinstance(micro_batch, int) else None,
    )  # fmt: skip


def _number(value: object) -> float | None:
    """A number, or the string of one that JSON does not know."""
    try:
        return float(value) if isinstance(value, int | float | str) else None
    except ValueError:
        return None
