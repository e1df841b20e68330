"""Pushes that are sent and not yet confirmed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from heterps.ps.desk import Order
from heterps.ps.errors import ServerTimeout
from heterps.ps.wire import Reply

Answer = Future[Reply] | Order
"""What comes of an operation, or of an order at a desk."""


class Ticket:
    """A client's part of one step's push."""

    def __init__(self, step: int, futures: Sequence[Answer]) -> None:
        self.step = step
        self._futures = futures

    @property
    def done(self) -> bool:
        """True if the step is applied, or has failed."""
        return all(future.done() for future in self._futures)

    @property
    def failed(self) -> bool:
        """True if it is done, and with an error."""
        return self.done and any(future.exception() is not None for future in self._futures)

    def wait(self, timeout_s: float | None = None) -> None:
        """Returns when all parts of the step are there and applied; raises its error.

        With `timeout_s`, raises `ServerTimeout` if they are not by then; the part stays with the servers.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        errors = []
        for future in self._futures:
            try:
                left_s = None if end_s is None else max(0.0, end_s - time.monotonic())
                errors.append(future.exception(left_s))
            except TimeoutError:
                message = f"step {self.step}: not all parts of it came within {timeout_s:g} s"
                raise ServerTimeout(message) from None
        for error in errors:
            if error is not None:
                raise error


class Outstanding:
    """The pushes of one table, of all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pushes: set[Future[Reply]] = set()
        self._failed: list[BaseException] = []
        self._tickets: list[Ticket] = []

    def push(self, future: Future[Reply]) -> None:
        """Remembers a push until it is confirmed, and its error until somebody waits."""
        with self._lock:
            self._pushes.add(future)
        future.add_done_callback(self._pushed)

    def part(self, step: int, futures: Sequence[Answer]) -> Ticket:
        """Remembers a part until it is applied, and its error until somebody waits."""
        ticket = Ticket(step, futures)
        with self._lock:
            self._tickets = [one for one in self._tickets if not one.done or one.failed]
            self._tickets.append(ticket)
        return ticket

    def wait(self) -> None:
        """Returns when everything so far is applied; raises the first error."""
        with self._lock:
            pushes = list(self._pushes)
        for future in pushes:
            future.exception()
            self._pushed(future)  # the waiting ends before the callbacks run
        with self._lock:
            failed, self._failed = self._failed, []
        try:
            self.wait_for(None)
        finally:
            if failed:
                raise failed[0]

    def wait_for(self, step: int | None, timeout_s: float | None = None) -> None:
        """Returns when all parts of steps up to `step` (None: of all) are applied; raises the first error."""
        with self._lock:
            due = [ticket for ticket in self._tickets if step is None or ticket.step <= step]
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        for ticket in due:
            try:
                ticket.wait(None if end_s is None else max(0.0, end_s - time.monotonic()))
            finally:
                with self._lock:
                    self._tickets = [one for one in self._tickets if one is not ticket or not one.done]

    def _pushed(self, future: Future[Reply]) -> None:
        with self._lock:
            if future in self._pushes:
                self._pushes.remove(future)
                error = future.exception()
                if error is not None:
                    self._failed.append(error)
