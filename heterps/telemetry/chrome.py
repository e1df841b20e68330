"""Spans as a trace that opens in chrome://tracing and in Perfetto: one track a stage, and one a counter and curve.

The file is a JSON array of trace events. That format allows the closing bracket to be missing, and events are written
with their comma in front, so that the trace of a process that was killed opens too.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heterps.telemetry.jsonl import encode, open_for_writing
from heterps.telemetry.ledger import Span
from heterps.telemetry.records import Count, Kind, Record, Scalar

_REPLICA = 1_000
"""The second thread that works for stage s has track `1000 + s`, the third `2000 + s`: spans of a track must nest."""

_STAGELESS = 1_000_000
"""Threads that work for no stage have tracks from here on."""


class ChromeTrace:
    """Writes spans, counters, curves and events to a trace file.

    Args:
        path: the file; folders are made.
        stages: what to call stages, by number, such as `{0: "cpu × 2"}` for a track "stage 0 · cpu × 2".
    """

    kinds: frozenset[Kind] = frozenset(("span", "count", "scalar", "event"))

    def __init__(self, path: str | Path, *, stages: Mapping[int, str] | None = None) -> None:
        self._path = Path(path)
        self._stages = dict(stages or {})
        self._pid = os.getpid()
        self._tracks: dict[tuple[int | None, int], int] = {}
        """Number of the track of each (stage, thread)."""
        self._file = open_for_writing(self._path)
        process = {"name": "process_name", "ph": "M", "pid": self._pid, "tid": 0, "args": {"name": "heterps"}}
        self._file.write(b"[\n" + json.dumps(process).encode())
        self._file.flush()

    def write(self, records: Sequence[Record]) -> None:
        """Adds events, whole ones at once."""
        events = [event for record in records for event in self._events(record)]
        self._file.write("".join([",\n" + encode(event) for event in events]).encode())
        self._file.flush()

    def close(self) -> None:
        """Ends the array."""
        self._file.write(b"\n]\n")
        self._file.close()

    def __str__(self) -> str:
        return str(self._path)

    def _events(self, record: Record) -> list[dict[str, Any]]:
        event: dict[str, Any] = {"name": record.name, "pid": self._pid, "ts": _microseconds(record.t)}
        if isinstance(record, Span):
            track, named = self._track(record.stage, record.thread)
            numbers = {"step": record.step, "micro_batch": record.micro_batch}
            args = {key: value for key, value in numbers.items() if value is not None}
            dur = round(_microseconds(record.t + record.duration_s) - event["ts"], 3)
            span = {"ph": "X", "dur": dur, "tid": track, "args": args}
            return [*named, event | span]
        if isinstance(record, Count | Scalar):
            value = record.total if isinstance(record, Count) else record.value
            if not math.isfinite(value):
                return []  # viewers plot numbers; the JSON lines have the rest
            return [event | {"ph": "C", "tid": 0, "args": {"value": value}}]
        return [event | {"ph": "i", "s": "g", "tid": 0, "args": record.fields}]

    def _track(self, stage: int | None, thread: int) -> tuple[int, list[dict[str, Any]]]:
        """The track of a thread's work for a stage, and the events that name it if it is new."""
        if (known := self._tracks.get((stage, thread))) is not None:
            return known, []
        earlier = sum(1 for other, _ in self._tracks if other == stage)
        if stage is None:
            track, order = _STAGELESS + earlier, _STAGELESS + earlier
            name = next((found.name for found in threading.enumerate() if found.ident == thread), f"thread {earlier}")
        else:
            track, order = earlier * _REPLICA + stage, stage * _REPLICA + earlier
            label = self._stages.get(stage)
            name = f"stage {stage}" + (f" · {label}" if label else "") + (f" ({earlier + 1})" if earlier else "")
        self._tracks[stage, thread] = track
        about = {"ph": "M", "pid": self._pid, "tid": track}
        return track, [
            about | {"name": "thread_name", "args": {"name": name}},
            about | {"name": "thread_sort_index", "args": {"sort_index": order}},
        ]


def _microseconds(seconds: float) -> float:
    """To the nanosecond. Ends are rounded rather than durations, so that what nests still does."""
    return round(seconds * 1e6, 3)
