"""A clock that stands still until it is moved, and sinks that keep, fail or wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from heterps.telemetry import Record
from heterps.telemetry.records import Kind

LIMIT_S = 150.0
ALL: tuple[Kind, ...] = ("span", "count", "scalar", "event")


class Clock:
    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Kept:
    """Keeps records; `only` of some kinds."""

    def __init__(self, *only: Kind) -> None:
        self.kinds = frozenset(only or ALL)
        self.records: list[Record] = []
        self.closed = threading.Event()

    def write(self, records: Sequence[Record]) -> None:
        self.records += records

    def close(self) -> None:
        self.closed.set()

    def of(self, kind: Kind) -> list[Record]:
        return [record for record in self.records if record.kind == kind]


class Failing(Kept):
    """Raises from the first write on."""

    def __init__(self) -> None:
        super().__init__("scalar")
        self.writes = 0

    def write(self, records: Sequence[Record]) -> None:
        self.writes += 1
        raise OSError(28, "No space left on device")

    def close(self) -> None:
        super().close()
        raise OSError(28, "No space left on device")


class Stuck(Kept):
    """Waits in its first write until it is let go."""

    def __init__(self) -> None:
        super().__init__("scalar")
        self.entered, self.go = threading.Event(), threading.Event()

    def write(self, records: Sequence[Record]) -> None:
        self.entered.set()
        assert self.go.wait(LIMIT_S)
        super().write(records)
