"""What a replica did when, kept until it is asked for: the coordinator puts it into the run's one trace."""

from __future__ import annotations

import time
from collections.abc import Sequence

from heterps.runtime.cluster.work import SpanOf
from heterps.telemetry import Recorder
from heterps.telemetry.ledger import WORK, Span
from heterps.telemetry.records import Kind, Record


class Spans:
    """Records the work of a stage; with `keep`, also each stretch of it."""

    def __init__(self, *, keep: bool) -> None:
        self._sink = _Kept()
        self.recorder = Recorder([self._sink] if keep else [])
        self._began_s = time.time() - self.recorder.now()

    def taken(self) -> tuple[SpanOf, ...]:
        """Those since the last call."""
        self.recorder.flush()
        spans, self._sink.spans = self._sink.spans, []
        return tuple(
            (span.name, self._began_s + span.t, span.duration_s, span.step or 0, span.micro_batch) for span in spans
        )


class _Kept:
    kinds: frozenset[Kind] = frozenset({"span"})

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def write(self, records: Sequence[Record]) -> None:
        self.spans += [record for record in records if isinstance(record, Span) and record.name in WORK]

    def close(self) -> None:
        pass
