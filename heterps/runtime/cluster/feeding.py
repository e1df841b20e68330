"""How far a replica is with its data and its steps: what it may read, what each step leaves the data at, who waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heterps.runtime.cluster.mail import PeerLost


@dataclass(frozen=True, slots=True)
class Mark:
    """Where the data stands when a step is fed."""

    samples: int
    position: Any
    skipped_rows: int = 0


class Bounds:
    """Counts the steps that are fed and done, and has threads wait for them. Any error ends all waiting."""

    def __init__(self, step: int, mark: Mark, *, timeout_s: float) -> None:
        """All stands at a step; no step may take longer than `timeout_s` while somebody waits for its end."""
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._room, self._reached = threading.Condition(self._lock), threading.Condition(self._lock)
        self.done = self.fed = self.allowed = self._until = step
        self._ended = False
        self._marks = {step: mark}
        self._error: BaseException | None = None

    def may_feed(self, ahead: int) -> int:
        """The next step to be fed; waits until it is allowed, and at most `ahead` steps are fed and not done."""
        with self._lock:
            self._wait(self._room, lambda: self.fed < self.allowed and self.fed - self.done <= ahead, None)
            return self.fed

    def feed(self, mark: Mark) -> None:
        """The next step is about to be fed."""
        with self._lock:
            self.fed += 1
            self._marks[self.fed] = mark

    def end(self) -> None:
        """There is no more data."""
        with self._lock:
            self._ended = True
            self._reached.notify_all()

    def finish(self, step: int) -> None:
        """A step is done."""
        with self._lock:
            self.done = step + 1
            self._room.notify_all()
            if self.done == self._until or self._ended:
                self._reached.notify_all()

    def is_end(self, step: int) -> bool:
        """Whether this is where somebody waits for all to be done, now or at the next call."""
        with self._lock:
            return step in (self._until, self.allowed)

    def reach(self, until: int, allowed: int) -> tuple[int, Mark, bool]:
        """Waits until the steps before `until` are done; those before `allowed` may begin meanwhile.

        Gives the step reached, where the data stands there, and whether it ended there: then it may be an earlier step.
        """
        with self._lock:
            self._until, self.allowed = until, max(until, allowed, self.allowed)
            self._room.notify_all()
            self._wait(self._reached, lambda: self.done >= until or self._over(), self._timeout_s)
            step = min(until, self.done)
            for earlier in [number for number in self._marks if number < step]:
                del self._marks[earlier]
            return step, self._marks[step], self._over() and step == self.fed

    def is_still(self, step: int) -> bool:
        """Whether nothing goes on behind a step."""
        with self._lock:
            return step == self.allowed or (self._over() and step == self.fed)

    def fail(self, error: BaseException) -> None:
        """Whoever waits, now or later, gets the first error there was."""
        with self._lock:
            self._error = self._error or error
            self._room.notify_all()
            self._reached.notify_all()

    def _over(self) -> bool:
        return self._ended and self.done == self.fed

    def _wait(self, change: threading.Condition, holds: Callable[[], bool], timeout_s: float | None) -> None:
        seen = self.done
        while not holds() and self._error is None:
            if not change.wait(timeout_s) and self._error is None and self.done == seen:
                raise PeerLost(f"step {self.done} was not finished within {timeout_s:.0f} s")
            seen = self.done
        if self._error is not None:
            raise self._error
