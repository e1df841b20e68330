"""The background thread between those who record and the sinks."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from heterps.telemetry.records import Record, Sink

log = logging.getLogger("heterps.telemetry")

ENDED_S = 0.1
"""How often who waits for a flush looks whether the writing thread has ended."""


class _Outlet:
    """A sink until it fails, and a count of what it misses from then on."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._failed = False

    def write(self, records: Sequence[Record]) -> int:
        """Gives the sink what it wants; returns how many records are lost."""
        wanted = [record for record in records if record.kind in self._sink.kinds]
        if wanted and not self._failed:
            try:
                self._sink.write(wanted)
            except Exception as error:
                self._fail(error)
                with contextlib.suppress(Exception):
                    self._sink.close()
        return len(wanted) if self._failed else 0

    def close(self) -> None:
        if not self._failed:
            try:
                self._sink.close()
            except Exception as error:
                self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        log.warning("telemetry to %s ends here, training goes on: %s", self._sink, error)


class Writer:
    """Drains a bounded queue into sinks every `every_s` seconds. Nobody waits for it but `flush` and `close`.

    A record that finds the queue full is dropped. A sink that raises (a full disk, say) is reported once, closed and
    given no more; what it misses counts as dropped.
    """

    def __init__(
        self, sinks: Sequence[Sink], *, capacity: int, every_s: float, extra: Callable[[], Iterable[Record]]
    ) -> None:
        self._outlets = [_Outlet(sink) for sink in sinks]
        self._capacity, self._every_s, self._extra = capacity, every_s, extra
        """`extra` gives records to write along at every drain."""
        self._queue: deque[Record] = deque()
        self._wake = threading.Event()
        self._flushes: deque[threading.Event] = deque()
        self._lock = threading.RLock()
        self._dropped = 0
        self._failed = False
        self._full = False
        self._told = False
        """Whether a record found the queue full, and whether that was reported: by the thread, as logging may wait."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="heterps-telemetry", daemon=True)
        if sinks:
            self._thread.start()

    @property
    def dropped(self) -> int:
        """Records that did not reach a sink that wanted them."""
        return self._dropped

    def drop(self, n: int = 1) -> None:
        """Counts records as lost."""
        with self._lock:
            self._dropped += n

    def failed(self, error: Exception) -> None:
        """Counts a record that could not be made, and reports the first."""
        self.drop()
        if not self._failed:
            self._failed = True
            log.warning("a record was dropped, training goes on: %s: %s", type(error).__name__, error)

    def put(self, record: Record) -> None:
        """Hands a record over, without waiting. Appending is atomic; threads may pass the bound by one each."""
        waiting = len(self._queue)
        if waiting >= self._capacity or self._closing:
            self._full = self._full or waiting >= self._capacity
            self.drop()
            return
        self._queue.append(record)
        if waiting == self._capacity // 2:
            self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Waits until what was put before is in the sinks; False if that took longer than the timeout."""
        if not self._thread.is_alive():
            return True
        done = threading.Event()
        self._flushes.append(done)
        self._wake.set()
        until = time.monotonic() + timeout_s
        while not done.wait(min(ENDED_S, max(0.0, until - time.monotonic()))):
            if not self._thread.is_alive():
                return True  # it was closed meanwhile, and had written everything
            if time.monotonic() >= until:
                return False
        return True

    def close(self, timeout_s: float = 5.0) -> bool:
        """Writes what is left and closes the sinks; False if that takes longer, which then goes on by itself."""
        self._closing = True
        self._wake.set()
        if not self._thread.is_alive() or threading.current_thread() is self._thread:
            return True
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("telemetry did not finish writing within %g s: its last records may be missing", timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while not self._closing:
            self._wake.wait(self._every_s)
            self._wake.clear()
            asked = [self._flushes.popleft() for _ in range(len(self._flushes))]
            self._drain()
            for done in asked:
                done.set()
        self._drain()
        for outlet in self._outlets:
            outlet.close()
        while self._flushes:
            self._flushes.popleft().set()

    def _drain(self) -> None:
        records = [self._queue.popleft() for _ in range(len(self._queue))]
        records += self._extra()
        if records:
            self.drop(sum(outlet.write(records) for outlet in self._outlets))
        if self._full and not self._told:
            self._told = True
            log.warning("telemetry falls behind: what does not fit its queue of %d is dropped", self._capacity)
