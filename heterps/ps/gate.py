"""Who may connect to a server: admits the job's client key alone, and logs everyone else with their address."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from typing import Any

import zmq
import zmq.utils.monitor
from zmq.utils import z85

log = logging.getLogger("heterps.ps")

ZAP = "inproc://zeromq.zap.01"
"""Where libzmq asks about each handshake (ZeroMQ RFC 27)."""


class Gate:
    """Answers libzmq's questions about handshakes on a server's sockets, in the server's own loop.

    A client with another key gets through the encryption and is refused here. One that has no key at all, or not the
    server's, fails earlier; that shows only as an event of the socket, followed by its disconnection.
    """

    def __init__(self, context: zmq.Context[Any]) -> None:
        self._questions: zmq.Socket[bytes] = context.socket(zmq.REP)
        self._questions.linger = 0
        self._questions.bind(ZAP)
        self._admitted = b""
        self._guarded: list[zmq.Socket[bytes]] = []
        self._peers: dict[int, str] = {}
        self._failed = False
        self.sockets: list[zmq.Socket[bytes]] = [self._questions]
        """Where questions and events come in: to be polled, and handled when ready."""
        self.refused = 0

    def guard(self, guarded: zmq.Socket[bytes], client_public: str) -> None:
        """Admits that key alone to a socket that is about to bind."""
        self._admitted = z85.decode(client_public.encode())
        wanted = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self.sockets.append(guarded.get_monitor_socket(wanted | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL))
        self._guarded.append(guarded)

    def handle(self, ready: zmq.Socket[bytes]) -> None:
        """Takes one question or event."""
        if ready is self._questions:
            self._answer()
        else:
            self._watch(ready)

    def _answer(self) -> None:
        """Frames of a question: version, number, domain, address, identity, mechanism, credentials."""
        frames = self._questions.recv_multipart()
        version, number, address = frames[0], frames[1], frames[3]
        admitted = frames[5] == b"CURVE" and frames[6:] == [self._admitted]
        if not admitted:
            self._refuse(address.decode(errors="replace"), "its key is not the job's")
        status, text = (b"200", b"OK") if admitted else (b"400", b"not the key of this job")
        self._questions.send_multipart([version, number, status, text, b"", b""])

    def _watch(self, events: zmq.Socket[bytes]) -> None:
        event = zmq.utils.monitor.recv_monitor_message(events)
        kind, value = event["event"], event["value"]
        if kind == zmq.EVENT_ACCEPTED:
            self._peers[value] = _peer(value)
        elif kind == zmq.EVENT_DISCONNECTED:
            peer = self._peers.pop(value, "an unknown address")
            if self._failed:
                self._failed = False
                self._refuse(peer, "no handshake with the job's keys")
        else:
            self._failed = True

    def _refuse(self, peer: str, why: str) -> None:
        self.refused += 1
        if seldom(self.refused):
            log.warning("refused a client at %s: %s (%d so far)", peer, why, self.refused)

    def close(self) -> None:
        """Closes its sockets."""
        for guarded in self._guarded:
            guarded.disable_monitor()
        for socket_ in self.sockets:
            socket_.close()


def seldom(count: int) -> bool:
    """True for the 1st, 2nd, 4th, 8th ... of something to be logged: a flood fills no disk."""
    return count & (count - 1) == 0


def _peer(descriptor: int) -> str:
    """Address of the other end; the descriptor is libzmq's and may be closed already."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
        host, port = copy.getpeername()[:2]
        return f"{host}:{port}"
    return "an unknown address"
