"""Lines between a server and clients of its machine: short messages go from thread to thread, past the network.

A message by ZeroMQ wakes a thread of the sender's and one of the receiver's before it wakes who waits for it, and each
of them waits for a core. Where large arrays cross in shared memory, messages are a few hundred bytes, and a packet of a
Unix socket wakes the receiver alone. Such a line comes beside the connection by ZeroMQ, which stays for what does not
fit, and for when the line breaks: operations are numbered, so it does not matter which way a message takes.

The server listens at a name that follows from its arena's token, one of those without a file. Whoever comes must be of
the same user and say the token first, which only those know that were told over the encrypted connection.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress

PACKET_BYTES = 32 << 10
"""Longer messages go by ZeroMQ; the kernel holds a few packets of this size (assumed)."""
TURN_PACKETS = 64
"""Packets read in a row before others get their turn."""
MAX_LINES = 1024
MAX_STRANGERS = 64
"""Connections that have not said the token yet; beyond, the oldest is closed."""
TOKEN_BYTES = 16
_PEER = struct.Struct("3i")
_AT_ONCE = int(socket.MSG_DONTWAIT) | int(socket.MSG_NOSIGNAL)


class Line:
    """One end of a line. `alive` is false once it has broken."""

    def __init__(self, end: socket.socket, client: bytes = b"") -> None:
        end.setblocking(False)
        self._socket, self.client, self.alive = end, client, True
        self.number = end.fileno()
        """The descriptor, for pollers."""

    @classmethod
    def connect(cls, token: str, client: bytes) -> Line | None:
        """A line to the server whose arena has this token; None if there is none here."""
        if sys.platform != "linux":
            return None
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            end.connect(_name(token))
            end.send(bytes.fromhex(token) + client)
        except OSError:
            end.close()
            return None
        return cls(end, client)

    def send(self, packet: bytes) -> bool:
        """Sends a message at once; false if it is too long, the line full or broken: then it has to go another way."""
        if not self.alive or len(packet) > PACKET_BYTES:
            return False
        try:
            self._socket.send(packet, _AT_ONCE)
        except BlockingIOError:
            return False
        except OSError:
            self.alive = False
            return False
        return True

    def receive(self) -> Iterator[bytes]:
        """The messages that are there, up to TURN_PACKETS."""
        for _ in range(TURN_PACKETS if self.alive else 0):
            try:
                packet = self._socket.recv(PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self.alive = False
                return
            yield packet

    def close(self) -> None:
        """Ends it; closing twice is fine."""
        self.alive = False
        self._socket.close()


class Exchange:
    """A server's lines. For its own thread; `numbers` are what to poll."""

    def __init__(self, token: str) -> None:
        self._token = bytes.fromhex(token)
        self._lines: dict[int, Line] = {}
        self._strangers: dict[int, socket.socket] = {}
        self._door: socket.socket | None = None
        if sys.platform == "linux":
            self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._door.setblocking(False)
            self._door.bind(_name(token))
            self._door.listen(MAX_STRANGERS)

    @property
    def numbers(self) -> list[int]:
        """Descriptors of the lines, of whoever has not said the token yet, and of the door."""
        return [*self._lines, *self._strangers, *([] if self._door is None else [self._door.fileno()])]

    def drop(self, line: Line) -> None:
        """Ends a line."""
        self._lines.pop(line.number, None)
        line.close()

    def handle(self, number: int) -> tuple[Line | None, list[bytes]]:
        """The line of a descriptor that is ready, if it is one, and what came over it."""
        if (line := self._lines.get(number)) is not None:
            packets = list(line.receive())
            if not line.alive:
                self.drop(line)
            return line, packets
        if number in self._strangers:
            self._greet(number)
        elif self._door is not None and number == self._door.fileno():
            self._open()
        return None, []

    def close(self) -> None:
        """Ends all lines."""
        for line in self._lines.values():
            line.close()
        for stranger in self._strangers.values():
            stranger.close()
        if self._door is not None:
            self._door.close()
        self._lines.clear()
        self._strangers.clear()
        self._door = None

    def _open(self) -> None:
        assert self._door is not None
        with suppress(OSError):  # it has gone again
            end, _ = self._door.accept()
            end.setblocking(False)
            _, user, _ = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            _, own, _ = _PEER.unpack(self._door.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
            if user != own or len(self._lines) >= MAX_LINES:
                end.close()
                return
            if len(self._strangers) >= MAX_STRANGERS:
                self._strangers.pop(next(iter(self._strangers))).close()
            self._strangers[end.fileno()] = end

    def _greet(self, number: int) -> None:
        end = self._strangers.pop(number)
        try:
            said = end.recv(PACKET_BYTES)
        except OSError:
            said = b""
        if hmac.compare_digest(said[:TOKEN_BYTES], self._token):
            self._lines[number] = Line(end, said[TOKEN_BYTES:])
        else:
            end.close()


def _name(token: str) -> str:
    """Where a server listens; says nothing about the token."""
    return f"\0heterps-{hashlib.sha256(token.encode()).hexdigest()[:32]}"
