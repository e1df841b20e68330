"""How replicas reach each other: a ROUTER socket for what comes, a DEALER socket to each peer, all with CURVE.

Within a machine large tensors cross in shared memory, and only where they lie travels, by a line (`heterps.ps.near`).
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from heterps.errors import HeterPSError
from heterps.ps.errors import WireError
from heterps.ps.gate import Gate
from heterps.ps.keys import Keys, protect
from heterps.ps.near import Exchange, Line
from heterps.ps.shared import Arena, Bytes, Offer, Place, View
from heterps.ps.wire import MAX_FRAME_BYTES
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.messages import Key, Message, decode, encode

log = logging.getLogger("heterps.cluster")

HELD_BYTES = 2 << 30
"""Messages that wait here to be taken; beyond, nothing more is read, and TCP holds the senders back (assumed: training
has a few steps of messages under way)."""
QUEUED_MESSAGES = 4096
"""Messages that wait for a peer; beyond, sending waits."""
NARROWED = ("forward", "backward")
"""Kinds that may travel as bf16."""


class PeerLost(HeterPSError):
    """What a replica waits for does not come, or does not leave."""


def _broke(seat: Seat) -> str:
    return f"the connection to {seat} broke, and messages with it"


@dataclass(slots=True)
class _Peer:
    socket: zmq.Socket[bytes]
    lock: threading.Lock
    near: bool
    """Whether it shares memory with us."""
    line: Line | None
    """For messages without tensors of their own."""


class Mail:
    """The messages of one replica in one attempt; for any threads.

    One thread of its own takes what comes: it hands messages to whoever asked for their kind by `on`, and keeps the
    others for `take` and `first`. Messages of other attempts, a second one of the same key and malformed ones are
    dropped and counted. A connection to a peer that breaks may have lost messages: whoever waits raises then.
    """

    def __init__(
        self,
        host: str,
        keys: Keys,
        attempt: int,
        *,
        me: Seat,
        narrow: bool = False,
        timeout_s: float = 600.0,
        share: bool = True,
    ) -> None:
        """Binds to any free port of `host`; `timeout_s` limits how long one waits for a message."""
        self._keys, self._attempt, self._me, self._narrow, self._timeout_s = keys, attempt, me, narrow, timeout_s
        self.dropped = 0
        self._arena = Arena() if share else None
        self._exchange = None if self._arena is None else Exchange(self._arena.offer.token)
        self._views: dict[Seat, View] = {}
        self._handlers: dict[str, Callable[[Message], None]] = {}
        self._arrived: dict[Key, Message] = {}
        self._held_bytes = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._lost: Seat | None = None
        self.on_lost: Callable[[PeerLost], None] = lambda error: None
        """Called, in the thread of the mail, when a connection has broken."""
        self._monitors: dict[zmq.Socket[bytes], Seat] = {}
        self._met: set[Seat] = set()
        self._peers: dict[Seat, _Peer] = {}
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)
        self._context: zmq.Context[Any] = zmq.Context()
        self._gate = Gate(self._context)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.maxmsgsize = MAX_FRAME_BYTES
        address = f"tcp://{host}:*"
        protect(self._router, address, keys, server=True)
        self._gate.guard(self._router, keys.client_public)
        self._router.bind(address)
        self.address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        """Where peers find it."""
        self._thread = threading.Thread(target=self._listen, name="heterps-mail", daemon=True)
        self._thread.start()

    @property
    def offer(self) -> Offer | None:
        """By which peers of this machine share its memory; None if it has none to share."""
        return self._arena.offer if self._arena is not None else None

    @property
    def refused(self) -> int:
        """Peers that came without the attempt's keys."""
        return self._gate.refused

    def connect(self, addresses: Mapping[Seat, str], offers: Mapping[Seat, Offer | None] | None = None) -> None:
        """Says where the peers are, and what memory they offer to those of their machine."""
        for seat, address in addresses.items():
            offer = (offers or {}).get(seat)
            view = View.open(offer) if offer is not None and self._arena is not None else None
            if view is not None:  # then the peer can map ours as well
                self._views[seat] = view
            dealer = self._context.socket(zmq.DEALER)
            dealer.linger = 0
            dealer.sndhwm = QUEUED_MESSAGES
            dealer.sndtimeo = int(self._timeout_s * 1e3)
            protect(dealer, address, self._keys, server=False)
            self._monitors[dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)] = seat
            dealer.connect(address)
            line = Line.connect(offer.token, str(seat).encode()) if view is not None and offer is not None else None
            self._peers[seat] = _Peer(dealer, threading.Lock(), view is not None, line)
        self._wake()

    def send(self, to: Seat, message: Message) -> None:
        """Hands a message to the socket of a peer; waits while too many are on their way. Do not write to it later."""
        peer = self._peers[to]
        narrow = self._narrow and not peer.near and message.kind in NARROWED
        arena = self._arena if peer.near else None
        frames = encode(message, self._me, self._attempt, narrow=narrow, arena=arena)
        try:
            with peer.lock:
                if peer.line is not None and len(frames) == 1 and peer.line.send(bytes(frames[0])):
                    return
                peer.socket.send_multipart(frames, copy=False)
        except zmq.Again:
            raise PeerLost(f"{to} takes no messages") from None

    def on(self, kind: str, handler: Callable[[Message], None]) -> None:
        """From now on messages of this kind are handed over as they come, in the thread of the mail."""
        with self._changed:
            for key in sorted(key for key in self._arrived if key[0] == kind):
                message = self._arrived.pop(key)
                self._held_bytes -= message.nbytes
                handler(message)
            self._handlers[kind] = handler

    def first(self, keys: Sequence[Key]) -> Message:
        """The first of these that is there, in the order given; waits until one is."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended() or self._any(keys), self._timeout_s):
                raise PeerLost(f"nothing came within {self._timeout_s:.0f} s of {', '.join(map(str, keys))}")
            if not self._any(keys):
                raise self._end()
            message = next(self._arrived.pop(key) for key in keys if key in self._arrived)
            full = self._held_bytes >= HELD_BYTES
            self._held_bytes -= message.nbytes
        if full:
            self._wake()
        return message

    def take(self, kind: str, step: int, part: str) -> Message:
        """One message, waited for."""
        return self.first([(kind, step, part)])

    def there(self, key: Key) -> bool:
        """Whether a message has come."""
        with self._changed:
            return key in self._arrived

    def is_near(self, seat: Seat) -> bool:
        """Whether a peer shares memory with us."""
        return self._peers[seat].near

    def lend(self, nbytes: int) -> tuple[Place, Bytes] | None:
        """A block of our memory for the rest of the attempt, zeros at first; None if there is no room."""
        taken = None if self._arena is None else self._arena.take(nbytes)
        if taken is not None:
            taken[1][:] = 0
        return taken

    def lent(self, seat: Seat, place: Place) -> Bytes:
        """A block of a peer that is near."""
        return self._views[seat].read(place)

    def check(self, since_s: float, what: str) -> None:
        """For who waits elsewhere, since a moment of the monotonic clock: raises if it is of no use any more."""
        if self._ended():
            raise self._end()
        if time.monotonic() - since_s > self._timeout_s:
            raise PeerLost(f"nothing came within {self._timeout_s:.0f} s of {what}")

    def close(self) -> None:
        """Ends it; whoever waits raises. Closing twice is fine."""
        if self._context.closed:
            return
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._wake()
        self._thread.join()
        if self._exchange is not None:
            self._exchange.close()
        for peer in self._peers.values():
            with peer.lock:
                if peer.line is not None:
                    peer.line.close()
                peer.socket.disable_monitor()
                peer.socket.close()
        for monitor in self._monitors:
            monitor.close()
        self._gate.close()
        self._router.close()
        self._context.term()
        self._inner.close()
        self._outer.close()
        if self._arena is not None:
            self._arena.close()

    def _ended(self) -> bool:
        return self._stopping or self._lost is not None

    def _end(self) -> PeerLost:
        return PeerLost("the run ended" if self._lost is None else _broke(self._lost))

    def _any(self, keys: Sequence[Key]) -> bool:
        return any(key in self._arrived for key in keys)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway
            self._outer.send(b"\0")

    def _listen(self) -> None:
        poller, watched, polled = zmq.Poller(), 0, list[int]()
        poller.register(self._inner, zmq.POLLIN)
        for guarding in self._gate.sockets:
            poller.register(guarding, zmq.POLLIN)
        while not self._stopping:
            for monitor in list(self._monitors)[watched:]:
                poller.register(monitor, zmq.POLLIN)
                watched += 1
            reading = zmq.POLLIN if self._held_bytes < HELD_BYTES else 0
            poller.register(self._router, reading)
            lines = [] if self._exchange is None else self._exchange.numbers
            for number in {*polled, *lines}:
                poller.register(number, reading if number in lines else 0)
            polled = lines
            for ready, _ in poller.poll():
                if ready == self._inner.fileno():
                    self._inner.recv(4096)
                elif ready is self._router:
                    self._receive()
                elif ready in lines:
                    self._read_line(ready)
                elif ready in self._monitors:
                    self._hear_of(ready)
                else:
                    self._gate.handle(ready)

    def _hear_of(self, monitor: zmq.Socket[bytes]) -> None:
        """A connection was made, or has broken."""
        seat = self._monitors[monitor]
        if recv_monitor_message(monitor)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self._met.add(seat)
        elif seat in self._met and not self._stopping:
            with self._changed:
                self._lost = seat
                self._changed.notify_all()
            self.on_lost(PeerLost(_broke(seat)))

    def _receive(self) -> None:
        _, *frames = self._router.recv_multipart(copy=False)
        self._read([frame.buffer for frame in frames])

    def _read_line(self, number: int) -> None:
        """What came over a line. It ends with its peer, whose connection then breaks, too."""
        assert self._exchange is not None
        _, packets = self._exchange.handle(number)
        for packet in packets:
            self._read([memoryview(packet)])

    def _read(self, frames: list[memoryview]) -> None:
        try:
            attempt, message = decode(frames, self._views)
        except WireError as error:
            self._drop(str(error))
            return
        if attempt != self._attempt:
            self._drop(f"a message of attempt {attempt}, and this is {self._attempt}")
            return
        with self._changed:
            if message.key in self._arrived:
                self._drop(f"a second message {message.key}")
            elif (handler := self._handlers.get(message.kind)) is not None:
                handler(message)
            else:
                self._arrived[message.key] = message
                self._held_bytes += message.nbytes
                self._changed.notify_all()

    def _drop(self, why: str) -> None:
        self.dropped += 1
        if self.dropped & (self.dropped - 1) == 0:  # the 1st, 2nd, 4th, 8th ...: a flood fills no disk
            log.warning("dropped a message: %s (%d so far)", why, self.dropped)
