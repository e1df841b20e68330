"""The timeline: all stages over some typical steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from heterps.report.telemetry import Span, TelemetryReader
from heterps.telemetry import WORK

STEPS = 10
"""Shown (assumed: enough to see a rhythm, few enough to see each)."""
LOOKED_AT = 64
"""Steps around the middle, or the newest, among which to choose."""
MOST_SPANS = 1500


@dataclass(frozen=True, slots=True)
class _Window:
    first: int
    last: int
    t0: float
    t1: float


def timeline(reader: TelemetryReader, *, newest: bool) -> dict[str, Any] | None:
    """Spans of some neighbouring steps: from the middle of the last session or, with `newest`, from its end.

    Of the steps there, those are chosen that took a typical (the median) time and in which no evaluation and no
    checkpoint falls, if there are such. None if there are no spans of stages.
    """
    session = reader.session
    if session.first_step is None or session.last_step is None:
        return None
    first, last = _around(session.first_step, session.last_step, newest=newest)
    spans = reader.spans(first, last)
    window = _choose(spans)
    if window is None:
        return None
    shown = sorted(
        (span for span in spans if span.stage is not None and span.end > window.t0 and span.t < window.t1),
        key=lambda span: span.t,
    )[:MOST_SPANS]
    return {
        "first_step": window.first,
        "last_step": window.last,
        "begin_s": window.t0,
        "seconds": window.t1 - window.t0,
        "stages": sorted({span.stage for span in shown if span.stage is not None}),
        "spans": [
            {
                "stage": span.stage, "name": span.name, "step": span.step, "micro_batch": span.micro_batch,
                "begin_s": max(span.t, window.t0) - window.t0, "end_s": min(span.end, window.t1) - window.t0,
            }
            for span in shown
        ],
    }  # fmt: skip


def _around(first: int, last: int, *, newest: bool) -> tuple[int, int]:
    if newest:
        return max(first, last - LOOKED_AT), last
    middle = (first + last) // 2
    return max(first, middle - LOOKED_AT // 2), min(last, middle + LOOKED_AT // 2)


def _choose(spans: Sequence[Span]) -> _Window | None:
    """The window of a typical time among those that nothing interrupts, else among all."""
    work = [span for span in spans if span.stage is not None and span.step is not None and span.name in WORK]
    begins: dict[int, float] = {}
    ends: dict[int, float] = {}
    for span in work:
        assert span.step is not None
        begins[span.step] = min(span.t, begins.get(span.step, span.t))
        ends[span.step] = max(span.end, ends.get(span.step, span.end))
    steps = sorted(begins)
    if not steps:
        return None
    length = max(1, min(STEPS, len(steps), MOST_SPANS * len(steps) // len(work)))
    windows = [
        _Window(steps[i], steps[i + length - 1], begins[steps[i]], ends[steps[i + length - 1]])
        for i in range(len(steps) - length + 1)
    ]
    outside = [span for span in spans if span.stage is None]
    quiet = [w for w in windows if not any(span.end > w.t0 and span.t < w.t1 for span in outside)]
    ranked = sorted(quiet or windows, key=lambda window: window.t1 - window.t0)
    return ranked[len(ranked) // 2]
