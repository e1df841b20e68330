"""Worker threads that keep what belongs together in order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

Job = Callable[[], None]


class Lanes:
    """Runs jobs on `threads` threads; jobs of one lane one after another, in the order given. Jobs must not raise."""

    def __init__(self, threads: int) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, deque[Job]] = {}
        """Lanes with a job in work, and what waits behind it."""
        self._ready: SimpleQueue[tuple[str, Job] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"heterps-ps-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, lane: str, job: Job) -> None:
        """Runs `job` after all earlier ones of its lane."""
        with self._lock:
            waiting = self._waiting.get(lane)
            if waiting is not None:
                waiting.append(job)
                return
            self._waiting[lane] = deque()
        self._ready.put((lane, job))

    def close(self) -> None:
        """Ends the threads when the jobs already ready are done."""
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (item := self._ready.get()) is not None:
            lane, job = item
            while True:
                job()
                with self._lock:
                    waiting = self._waiting[lane]
                    if not waiting:
                        del self._waiting[lane]
                        break
                    job = waiting.popleft()
                if not self._ready.empty():
                    self._ready.put((lane, job))  # behind other lanes: a busy table does not starve the rest
                    break
