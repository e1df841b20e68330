"""A client's line to one server: numbers operations, sends them in order, and again until they are answered."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import zmq

from heterps.errors import HeterPSError, InvalidInput
from heterps.ps.errors import InvalidRequest, ServerError, ServerTimeout, WireError
from heterps.ps.keys import Keys, piece_bytes, protect
from heterps.ps.near import Line
from heterps.ps.server import READABLE, SOCKET_BUFFER_BYTES
from heterps.ps.shared import LEAST_BYTES, Arena, Offer, Place, View
from heterps.ps.wire import (
    MAX_FRAMES,
    MAX_OPERATIONS,
    Array,
    Operation,
    Reply,
    Request,
    Sharing,
    decode_replies,
    encode_request,
)

log = logging.getLogger("heterps.ps")

FLIGHT_MESSAGES = 8
"""Messages on the way to a server; operations behind them wait, and small ones then leave together."""
FLIGHT_BYTES = 64 << 20
QUEUE_BYTES = 128 << 20
"""Arrays that wait for their turn; beyond, callers wait (assumed)."""
QUEUE_OPERATIONS = 4096
GOODBYE_MS = 250
"""Time that a client's last word has to leave when it ends."""
HURRIED = 4
"""While fewer operations lack an answer, the next one is sent by who makes it, and no other thread wakes for it. Those
behind them are left to the client's thread, which joins them (assumed: a step has two for each table)."""
TOGETHER_BYTES = 256 << 10
"""Operations leave in one message while they are smaller than this together (assumed)."""


@dataclass(slots=True, eq=False)
class Message:
    """Operations that left together, until all are answered."""

    remaining: int
    nbytes: int


@dataclass(slots=True, eq=False)
class Pending:
    """An operation without an answer."""

    operation: Operation
    future: Future[Reply]
    nbytes: int
    message: Message | None = None
    held: bool = False
    """The server waits for parts of other clients: nothing waits behind it."""


class Channel:
    """Callers use `submit` and `hurry`; everything else belongs to the client's one thread, which owns the socket.

    Arrays that lie in the client's `arena` stay there if the server is on the same machine. Such a block is freed when
    its operation is settled. If it is given up instead, the server may still read the block one day: it is not used
    again before another server answers at this address.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        address: str,
        keys: Keys | None,
        client: bytes,
        *,
        timeout_s: float,
        retries: int,
        arena: Arena | None = None,
    ) -> None:
        self.address = address
        self._arena = arena
        self._sharing = None if arena is None else Sharing(arena.offer)
        self._view: View | None = None
        self.line: Line | None = None
        """A shorter way to a server of this machine, beside the socket."""
        self._given_up: set[int] = set()
        self._left: list[Place] = []
        """Blocks of operations that were given up."""
        self._context, self._keys, self._client = context, keys, client
        self._timeout_s, self._retries = timeout_s, retries
        self.piece_bytes = piece_bytes(address)
        self._at_work = threading.Lock()
        """Held by whoever sends or receives: the client's thread, or a caller for a moment."""
        self._changed = threading.Condition()
        self._queue: deque[Pending] = deque()
        self._late: list[Pending] = []
        """In flight, but not sent yet: the line did not take them."""
        self._queue_bytes = 0
        self._next = 0
        self._closed: str | None = None
        self._flight: dict[int, Pending] = {}
        self._flight_messages = self._flight_bytes = 0
        self._attempts = 0
        self._probe: int | None = None
        """The operation sent again to learn whether the server is alive."""
        self._refused: int | None = None
        """Where to go on when the server, which had too much of ours, has room again."""
        self._hole: int | None = None
        """The last operation of a message that broke the format: the server still waits for it, and we do not."""
        self._heard = False
        self._resent: tuple[int, float] = (-1, 0.0)
        self._quiet_since_s = time.monotonic()
        self.socket = self._connect()

    def submit(self, verb: str, table: str, args: dict[str, Any], arrays: list[Array]) -> Future[Reply]:
        """Queues an operation; waits while too much is queued. The arrays must not change until it is answered."""
        nbytes = sum(array.nbytes for array in arrays)
        if sum(-(-array.nbytes // self.piece_bytes) for array in arrays) >= MAX_FRAMES:
            raise InvalidInput(f"{verb}: {nbytes} bytes are more than a message holds; send them in several")
        future: Future[Reply] = Future()
        with self._changed:
            while self._queue and (self._queue_bytes > QUEUE_BYTES or len(self._queue) >= QUEUE_OPERATIONS):
                self._changed.wait()
            if self._closed is not None:
                raise ServerError(self._closed)
            self._queue.append(Pending(Operation(self._next, verb, table, args, arrays), future, nbytes))
            self._queue_bytes += nbytes
            self._next += 1
        return future

    @property
    def shares(self) -> bool:
        """True if large arrays cross in memory that both sides have mapped."""
        return self._view is not None

    @property
    def view(self) -> View | None:
        """The server's memory, if it is mapped."""
        return self._view

    @property
    def idle(self) -> bool:
        """True if every operation is answered, or waits for other clients."""
        with self._changed:
            return not self._queue and all(pending.held for pending in self._flight.values())

    def deadline_s(self) -> float | None:
        """When to call `check`, on the monotonic clock; None if nothing is on the way, nor sent by others unnoticed."""
        if self._flight:
            return self._quiet_since_s + self._timeout_s
        return None if self.line is None else time.monotonic() + self._timeout_s

    def hurry(self) -> bool:
        """Sends what waits, in the caller's thread, if it can leave at once; false if the client's has to do it."""
        if self.line is None or len(self._flight) >= HURRIED or not self._at_work.acquire(blocking=False):
            return False
        try:
            if self.line is None or self._late:
                return False
            batch = self._take()
            if batch and not self._by_line(self._encoded(batch)):
                self._late = batch  # sockets are the other thread's
            return not self._late and not self._queue
        finally:
            self._at_work.release()

    def pump(self) -> None:
        """Sends what may be sent."""
        with self._at_work:
            self._pump()

    def _pump(self) -> None:
        late, self._late = self._late, []
        if late:
            self._send(late)
        while batch := self._take():
            self._send(batch)

    def _take(self) -> list[Pending]:
        """The operations of the next message, now in flight; none if nothing waits, or too much is in flight."""
        with self._changed:
            if self._flight_messages >= FLIGHT_MESSAGES or (self._flight and self._flight_bytes > FLIGHT_BYTES):
                return []
            batch: list[Pending] = []
            size = 0
            while self._queue and len(batch) < MAX_OPERATIONS:
                size += self._queue[0].nbytes
                if batch and size > TOGETHER_BYTES:
                    break
                batch.append(self._queue.popleft())
            if not batch:
                return []
            if not self._flight:
                self._quiet_since_s = time.monotonic()
            message = Message(len(batch), sum(pending.nbytes for pending in batch))
            for pending in batch:
                pending.message = message
                self._flight[pending.operation.seq] = pending
            self._flight_messages += 1
            self._flight_bytes += message.nbytes
            self._queue_bytes -= message.nbytes
            self._changed.notify_all()
            return batch

    def receive(self) -> None:
        """Takes all replies that have arrived."""
        with self._at_work:
            self._receive()

    def _receive(self) -> None:
        answered = False
        for buffers in self._messages():
            try:
                replies, offer = decode_replies(buffers, self._view)
            except WireError as error:
                log.warning("reply of %s: %s", self.address, error)
                continue
            if any(reply.seq >= 0 for reply in replies):  # not just that it cannot read us
                self._attempts, self._quiet_since_s, self._heard = 0, time.monotonic(), True
            if self._sharing is not None:
                self._share(self._sharing, offer)
            for reply in replies:
                self._settle(reply)
                answered |= reply.status not in ("busy", "gap")
        self._go_on(answered)
        self._pump()

    def _messages(self) -> Iterator[list[Any]]:
        while int(self.socket.getsockopt(zmq.EVENTS)) & READABLE:
            yield [frame.buffer for frame in self.socket.recv_multipart(zmq.NOBLOCK, copy=False)]
        if (line := self.line) is not None:
            for packet in line.receive():
                yield [memoryview(packet)]
            if line is self.line and not line.alive:
                self._hang_up()

    def _hang_up(self) -> None:
        """From now on all messages take the socket."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def _go_on(self, answered: bool) -> None:
        """Sends again what the server had no room for, or would not take before something that does not come."""
        first = next((seq for seq, pending in self._flight.items() if not pending.held), None)
        if self._hole is not None and (first is None or first > self._hole):
            self._hole = None
            self._send_again(0)
        if self._refused is not None and (answered or first is None or first >= self._refused):
            refused, self._refused = self._refused, None
            self._send_again(refused)

    def _share(self, sharing: Sharing, offer: Offer | None) -> None:
        """Maps what the server offers. One that does not offer its memory, or whose cannot be mapped, is far away."""
        if offer is not None and offer.token != sharing.mapped:
            self._view = View.open(offer)
            self._sharing = None if self._view is None else Sharing(sharing.offer, offer.token)
            self._hang_up()
            self.line = None if self._view is None else Line.connect(offer.token, self._client)
            self._free(self._left)  # whoever could read them is no more
            self._left.clear()
        elif self._view is None:
            self._sharing = None

    def _settle(self, reply: Reply) -> None:
        if reply.status in ("gap", "busy"):
            self._go_back(reply)
        elif reply.status == "held":
            self._hold(reply)
        elif reply.status == "unmapped":
            self._sharing = self._view = None
            self._hang_up()
            self._send_again(0)
        elif reply.seq < 0:
            self._refuse(reply)
        elif (pending := self._land(reply)) is not None:
            if reply.status == "ok":
                pending.future.set_result(reply)
            else:
                kind = InvalidRequest if reply.status == "invalid" else ServerError
                pending.future.set_exception(kind(str(reply.value)))
            if reply.seq == self._probe:  # its first answer was lost, or it was: so may be the others'
                self._probe = None
                self._send_again(0)

    def _refuse(self, reply: Reply) -> None:
        """A message broke the format: fails the operation in it, if the server could read which.

        Of several, each is sent in a message of its own, to learn which one it is.
        """
        log.warning("%s: %s", self.address, reply.value)
        named = [seq for array in reply.arrays for seq in array.tolist()]
        numbers = [seq for seq in named if seq in self._flight]
        if len(named) == 1 and numbers:
            self._hole = max(numbers[0], self._hole or 0)
            self._settle(Reply(numbers[0], "error", f"{self.address}: {reply.value}"))
            return
        for seq in numbers:
            self._send([self._flight[seq]])

    def _go_back(self, reply: Reply) -> None:
        expected = reply.value if isinstance(reply.value, int) else 0
        if reply.status == "busy" and reply.seq >= expected:
            self._refused = expected
            return
        if reply.status == "gap" and expected == self._refused:  # behind the one that the server has no room for
            return
        if reply.seq == self._probe:
            self._probed(reply.seq)
        number, when_s = self._resent
        if expected != number or time.monotonic() - when_s > self._timeout_s:  # once for all gaps before it
            self._resent = (expected, time.monotonic())
            self._send_again(expected)

    def _hold(self, reply: Reply) -> None:
        """The server has a part, and waits for others: it is not on the way any more, and nothing waits behind it."""
        with self._changed:
            pending = self._flight.get(reply.seq)
            if pending is not None and not pending.held:
                pending.held = True
                self._leave(pending)
        if reply.seq == self._probe:
            self._probed(reply.seq)

    def _probed(self, seq: int) -> None:
        """The server lives, and has operation `seq`; the replies to those behind it may be lost."""
        self._probe = None
        self._send_again(seq + 1)

    def _land(self, reply: Reply) -> Pending | None:
        """The operation that a reply is for, if it has none yet: its blocks are free now, and the reply's are ours."""
        with self._changed:
            pending = self._flight.pop(reply.seq, None)
            if pending is not None and not pending.held:
                self._leave(pending)
        wanted = pending is not None or reply.seq in self._given_up
        self._given_up.discard(reply.seq)
        if reply.lent is not None and wanted:
            reply.lent.due = True
        if pending is not None:
            self._free(self._places(pending))
        return pending

    def _leave(self, pending: Pending) -> None:
        """Makes room for others on the way."""
        message = pending.message
        assert message is not None
        message.remaining -= 1
        if not message.remaining:
            self._flight_messages -= 1
            self._flight_bytes -= message.nbytes

    def _free(self, places: list[Place]) -> None:
        for place in places:
            assert self._arena is not None
            self._arena.give_back(place)

    def _places(self, pending: Pending) -> list[Place]:
        """Blocks of the client's arena that an operation lies in."""
        if self._arena is None:
            return []
        large = [array for array in pending.operation.arrays if array.nbytes >= LEAST_BYTES]
        return [place for array in large if (place := self._arena.place_of(array)) is not None]

    @property
    def ways(self) -> list[Any]:
        """What replies come by, to be polled; another socket or line is another way."""
        return [self.socket] if self.line is None else [self.socket, self.line.number]

    def check(self) -> None:
        """Acts on a server that has been quiet for too long; the socket may be a new one then."""
        with self._at_work:
            self._check()

    def _check(self) -> None:
        now = time.monotonic()
        if not self._flight or now - self._quiet_since_s < self._timeout_s:
            return
        self._quiet_since_s = now
        self._attempts += 1
        self._hang_up()
        if self._attempts > self._retries:
            waited_s = self._timeout_s * self._attempts
            self._fail(
                ServerTimeout(
                    f"no answer from {self.address} for {waited_s:g} s: is it running, with the same key file?"
                )
            )
            self._attempts = 0
        elif self._attempts == 1:
            self._probe = next(iter(self._flight))
            self._send([self._flight[self._probe]])
            return
        self.socket.close(linger=0)
        self.socket = self._connect()
        self._send_again(0)

    def close(self, reason: str) -> None:
        """Refuses further operations, fails those without an answer, and closes the socket."""
        with self._at_work:
            self._close(reason)

    def _close(self, reason: str) -> None:
        with self._changed:
            self._closed = reason
            self._changed.notify_all()
        self._fail(ServerError(reason))
        goodbye = self._heard and not self._attempts
        if goodbye:  # the server need not keep our replies any more
            self._send([])
        self._hang_up()
        self.socket.close(linger=GOODBYE_MS if goodbye else 0)

    def _connect(self) -> zmq.Socket[bytes]:
        dealer: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.sndhwm = dealer.rcvhwm = 0  # bounded by FLIGHT_MESSAGES
        dealer.rcvbuf = dealer.sndbuf = SOCKET_BUFFER_BYTES
        dealer.heartbeat_ivl, dealer.heartbeat_timeout = 10_000, 60_000
        dealer.reconnect_ivl, dealer.reconnect_ivl_max = 50, 2000
        try:
            protect(dealer, self.address, self._keys, server=False)
            dealer.connect(self.address)
        except BaseException as error:
            dealer.close()
            if isinstance(error, zmq.ZMQError):
                raise InvalidInput(f"cannot connect to {self.address}: {error}") from None
            raise
        return dealer

    def _send_again(self, seq: int) -> None:
        """Sends what is in flight from number `seq` on, in messages as before."""
        again = [pending for pending in self._flight.values() if pending.operation.seq >= seq]
        start = 0
        for end in range(1, len(again) + 1):
            if end == len(again) or again[end].message is not again[start].message or again[end].held:
                self._send(again[start:end])
                start = end

    def _send(self, batch: list[Pending]) -> None:
        parts = self._encoded(batch)
        if self._by_line(parts):
            return
        # A socket that the server has refused has no way out any more, and would wait for one for ever. What is not
        # sent is as good as lost on the way: it is sent again, by another socket, when its time is up.
        with suppress(zmq.Again):
            self.socket.send_multipart(parts, flags=zmq.NOBLOCK, copy=False)

    def _encoded(self, batch: list[Pending]) -> list[Any]:
        """A message of some operations, of which the first one in flight is the lowest without an answer."""
        operations, low = [pending.operation for pending in batch], next(iter(self._flight), self._next)
        request = Request(self._client, low, operations, self._sharing if batch else None)
        return encode_request(request, piece_bytes=self.piece_bytes, arena=self._arena if self.shares else None)

    def _by_line(self, parts: list[Any]) -> bool:
        return self.line is not None and len(parts) == 1 and self.line.send(bytes(parts[0]))

    def _fail(self, error: HeterPSError) -> None:
        with self._changed:
            failed = [*self._flight.values(), *self._queue]
            self._given_up.update(self._flight)
            for pending in failed:
                self._left += self._places(pending)
            self._flight.clear()
            self._late = []
            self._flight_messages = self._flight_bytes = 0
            self._queue.clear()
            self._queue_bytes = 0
            self._changed.notify_all()
        for pending in failed:
            pending.future.set_exception(error)
