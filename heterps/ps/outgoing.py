"""Replies on their way to each connection: those in work, and those sent that its other end has not taken yet.

ZeroMQ bounds how many messages it queues for a peer that does not read, but not their bytes. They are counted here, so
that whoever has enough to read gets nothing more to do, and nobody else notices.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import zmq

from heterps.ps.sessions import Route

REPLY_BYTES = 256 << 20
"""Of one connection; beyond, its pulls wait. As much as a client asks for at once: 8 messages of 32 MiB of rows."""
COUNTED_BYTES = 16 << 10
"""Smaller messages are not counted: the socket bounds their number (assumed)."""


@dataclass(slots=True)
class _Line:
    """One connection."""

    due_bytes: int = 0
    """Replies in work."""
    sent: deque[tuple[zmq.MessageTracker, int]] = field(default_factory=deque)
    """Messages, in order, and their bytes; a tracker is done when the transport has let go of the message."""

    def bytes_left(self) -> int:
        while self.sent and self.sent[0][0].done:
            self.sent.popleft()
        return self.due_bytes + sum(nbytes for _, nbytes in self.sent)


class Outgoing:
    """Counts replies by connection. For the server's own thread; `nbytes` for any."""

    def __init__(self, most_bytes: int = REPLY_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lines: dict[Route, _Line] = {}

    @property
    def nbytes(self) -> int:
        """Bytes for all connections."""
        lines = list(self._lines.values())
        sent = sum(nbytes for line in lines for tracker, nbytes in list(line.sent) if not tracker.done)
        return sent + sum(line.due_bytes for line in lines)

    def full(self, route: Route) -> bool:
        """True if a connection has as much on the way as it may."""
        line = self._lines.get(route)
        return line is not None and line.bytes_left() >= self._most_bytes

    def begin(self, route: Route, nbytes: int) -> None:
        """Replies of so many bytes are in work."""
        if nbytes:
            self._lines.setdefault(route, _Line()).due_bytes += nbytes

    def end(self, route: Route, nbytes: int) -> None:
        """They are not any more; what has become of them is sent."""
        if nbytes:
            self._lines[route].due_bytes -= nbytes
            self._forget()

    def send(self, router: zmq.Socket[bytes], route: Route, frames: list[Any]) -> None:
        """Sends a message, and counts it until it has left. One to a connection that is gone is dropped."""
        nbytes = sum(memoryview(frame).nbytes for frame in frames)
        if nbytes < COUNTED_BYTES:
            router.send_multipart([route[1], *frames], copy=False)
            return
        last = zmq.Frame(frames[-1], track=True, copy=False, copy_threshold=0)  # it leaves after all others
        router.send_multipart([route[1], *frames[:-1], last], copy=False)
        self._forget()
        assert last.tracker is not None
        self._lines.setdefault(route, _Line()).sent.append((last.tracker, nbytes))

    def _forget(self) -> None:
        """Drops the lines with nothing on the way: of connections that are gone nobody asks again."""
        for route in [route for route, line in self._lines.items() if not line.bytes_left()]:
            del self._lines[route]
