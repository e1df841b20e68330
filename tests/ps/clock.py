"""A client's clock that moves when servers answer, and only then: a machine that stalls is no server that is silent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from heterps.ps.client import Client


class Clock:
    """With each answer the client's timeout passes, so that it asks again at once, for `most` times."""

    def __init__(self, timeout_s: float, most: int) -> None:
        self._timeout_s, self._most, self._now = timeout_s, most, 0.0
        self.passed = 0
        """How often the timeout has passed."""

    def monotonic(self) -> float:
        return self._now

    def after(self, receive: Callable[[], None]) -> None:
        """Takes what has come, in the client's thread, which looks at the clock next."""
        receive()
        if self.passed < self._most:
            self.move()

    def move(self) -> None:
        """The timeout passes: for a request that has no answer before the client asks again."""
        self._now += 1.01 * self._timeout_s
        self.passed += 1


@contextmanager
def moved_by_answers(client: Client, *, most: int = 30) -> Iterator[Clock]:
    """Within it, of the one server of a client that waits for nothing when it begins."""
    (line,) = client._channels
    clock, receive = Clock(line._timeout_s, most), line.receive
    with (
        patch("heterps.ps.channel.time", clock),
        patch("heterps.ps.client.time", clock),
        patch.object(line, "receive", lambda: clock.after(receive)),
    ):
        line._quiet_since_s = clock.monotonic()
        yield clock
