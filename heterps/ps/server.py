"""The parameter server: hosts shards of named tables and serves many clients over one ROUTER socket."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import zmq

from heterps.errors import InvalidInput
from heterps.ps.errors import WireError
from heterps.ps.gate import Gate, seldom
from heterps.ps.hosting import Answer, Host, MakeTable
from heterps.ps.keys import Keys, piece_bytes, protect
from heterps.ps.lanes import Lanes
from heterps.ps.locks import lock
from heterps.ps.meeting import Ground
from heterps.ps.near import Exchange, Line
from heterps.ps.neighbours import Neighbours
from heterps.ps.outgoing import REPLY_BYTES, Outgoing
from heterps.ps.persistence import claim, load_server, save_server
from heterps.ps.sessions import Route, Session, Sessions, Verdict
from heterps.ps.shared import Arena, Offer
from heterps.ps.wire import (
    MAX_FRAME_BYTES,
    MAX_OPERATIONS,
    Operation,
    Reply,
    Request,
    Unmapped,
    decode_request,
    encode_replies,
    numbers_of,
)
from heterps.store.config import TableConfig
from heterps.store.table import SparseTable

log = logging.getLogger("heterps.ps")

WINDOW = 16 * MAX_OPERATIONS
"""Operations of one client that may be in work; beyond, the client is told to wait."""
QUEUED_BYTES = 512 << 20
"""Arrays of requests in work; beyond, the server stops reading, and TCP holds the clients back (assumed)."""
FRAME_SLACK = 2
"""Frames up to so many times the limit get an error reply; the transport cuts larger ones off unseen (assumed)."""
SOCKET_BUFFER_BYTES = 4 << 20
"""Room for a batch of rows in the kernel, so that sender and receiver overlap."""
TABLE_THREADS = 2
"""Of one operation on a table: workers wait for it, so cores are free. Steps of 9.8 and 7.2 ms of two replicas take 9.3
and 6.9 with two (uniform and Zipf ids, measured on two cores)."""
READABLE = int(zmq.POLLIN)
"""A plain number: flags are objects of Python's, and combining them took 3% of a shard's interpreter (sampled)."""
TURN_MESSAGES = 64
"""Messages read in a row before replies get their turn."""
DRAIN_TURNS = 64
"""Turns in which an ending server still takes what has arrived."""
LINGER_MS = 2000
"""Time that replies have to leave after the server ends."""
PATIENCE_MS = 20
"""A client hears that something waits for others when it has for so long: mostly the answer comes first (assumed)."""
UNTOLD = 4
"""Operations of a client that may wait untold (assumed: a few steps of one table), as it sends only some ahead."""
UNTOLD_BYTES = 8 << 20
"""The same for bytes of one message (assumed)."""


def native_table(config: TableConfig) -> Any:
    """A local table of the native core."""
    return SparseTable.from_config(config, threads=min(TABLE_THREADS, os.cpu_count() or 1))


class Accepted(NamedTuple):
    """An operation to be done."""

    operation: Operation
    again: bool
    """It was done before, and its reply is lost."""
    reply_bytes: int
    """The most that its reply takes."""


class Load(NamedTuple):
    """What a job takes while it is in work."""

    request_bytes: int
    reply_bytes: int
    route: Route
    """Where the reply is counted."""


class Server:
    """Serves until `stop`, in a thread of its own (`start`) or the caller's (`serve`); `close` stops, drains and saves.

    It may listen at several addresses: tcp for other machines, with the job's keys, and ipc for its own, which costs no
    encryption. One thread reads and writes messages; `threads` others do the work, each table by one of them at a time.
    With clients of its own machine it shares memory (`shared`), whatever the address: rows then cross uncopied.
    With `save_dir`, the tables and the state of clients found there are restored at the start and saved at the end.
    """

    def __init__(
        self,
        bind: str | Sequence[str],
        keys: Keys | None = None,
        *,
        make_table: MakeTable = native_table,
        threads: int = 2,
        io_threads: int = 1,
        save_dir: str | os.PathLike[str] | None = None,
        window: int = WINDOW,
        queued_bytes: int = QUEUED_BYTES,
        reply_bytes: int = REPLY_BYTES,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        shared: bool = True,
    ) -> None:
        addresses = [bind] if isinstance(bind, str) else list(bind)
        if not addresses or threads < 1 or io_threads < 1:
            raise InvalidInput(f"a server needs an address and threads, not {addresses} and {threads}, {io_threads}")
        self._host = Host(make_table)
        self._sessions = Sessions(window=window)
        self._outgoing = Outgoing(reply_bytes)
        self._save_dir = None if save_dir is None else Path(save_dir)
        self._locks = contextlib.ExitStack()
        """What no other server may have at the same time: sockets and the directory."""
        self._most_frame_bytes = max_frame_bytes
        self._most_queued_bytes = queued_bytes
        self._queued_bytes = 0
        self._in_work = 0
        self._requests = self._malformed = 0
        self._neighbours = Neighbours(Arena()) if shared else None
        self._exchange = None if self._neighbours is None else Exchange(self._neighbours.arena.offer.token)
        self._polled: list[int] = []
        """Descriptors of the exchange that are among `_all_ways`."""
        self._started_s = time.monotonic()
        self._outbox: deque[tuple[list[Answer], Load]] = deque()
        """Replies, and the load of the job that ends with them."""
        self._untold: deque[tuple[float, Session]] = deque()
        """Clients that are to be told what waits for others, and since when."""
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)
        self._context: zmq.Context[Any] = zmq.Context(io_threads)
        self._routers: list[zmq.Socket[bytes]] = []
        self.addresses: list[str] = []
        """Where it listens, with the ports that it was given for `*`."""
        self._gate = Gate(self._context)
        try:
            if self._save_dir is not None:
                self._locks.enter_context(claim(self._save_dir))
                load_server(self._save_dir, self._host, self._sessions)
            for address in addresses:
                self._bind(address, keys)
        except BaseException:
            self._close_sockets()
            raise
        self._own_ways = self._poller(self._inner, *self._gate.sockets)
        self._all_ways = self._poller(self._inner, *self._gate.sockets, *self._routers)
        self._lanes = Lanes(threads)
        self._savers = Lanes(1)

    def _bind(self, bind: str, keys: Keys | None) -> None:
        router = self._context.socket(zmq.ROUTER)
        self._routers.append(router)
        router.linger = LINGER_MS
        router.maxmsgsize = FRAME_SLACK * self._most_frame_bytes
        router.sndhwm = router.rcvhwm = 1024
        router.rcvbuf = router.sndbuf = SOCKET_BUFFER_BYTES
        router.heartbeat_ivl, router.heartbeat_timeout = 10_000, 60_000
        protect(router, bind, keys, server=True)
        if bind.startswith("tcp://") and keys is not None:
            self._gate.guard(router, keys.client_public)
        if bind.startswith("ipc://"):  # libzmq takes the socket from whoever listens there
            held = Path(f"{bind.removeprefix('ipc://')}.lock")
            self._locks.enter_context(lock(held, f"cannot bind to {bind}: another server listens there"))
        try:
            router.bind(bind)
        except zmq.ZMQError as error:
            raise InvalidInput(f"cannot bind to {bind}: {error}") from None
        endpoint = router.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(endpoint, bytes)
        self.addresses.append(endpoint.rstrip(b"\0").decode())

    @staticmethod
    def _poller(*ways: Any) -> zmq.Poller:
        poller = zmq.Poller()
        for way in ways:
            poller.register(way, zmq.POLLIN)
        return poller

    def start(self) -> Server:
        """Serves in a thread of its own."""
        self._thread = threading.Thread(target=self.serve, name="heterps-ps-server", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Asks the server to end; returns at once. Safe in a signal handler."""
        self._stopping = True
        self._wake()

    def stop_at(self, *signals: signal.Signals) -> None:
        """Has the server stop at these signals; for the main thread, before `serve`.

        Python runs a handler only when it gets to its next instruction. A signal that comes just before the server
        begins to wait would be noticed at the next message, so the signal itself wakes it.
        """
        signal.set_wakeup_fd(self._outer.fileno(), warn_on_full_buffer=False)
        for number in signals:
            signal.signal(number, lambda *_: self.stop())

    def close(self) -> None:
        """Ends the server: what was received is done and answered, then the tables are saved."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        elif not self._context.closed:
            self.serve()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def serve(self) -> None:
        """Serves until `stop`, then drains and saves."""
        try:
            while not self._stopping:
                self._turn()
            for _ in range(DRAIN_TURNS):  # what clients go on sending later is theirs to send again
                read = [self._read(number) for number in range(len(self._routers))]
                if not any([*read, *map(self._read_line, self._polled)]):
                    break
            for router, address in zip(self._routers, self.addresses, strict=True):
                router.unbind(address)
            while self._in_work:
                self._turn(reading=False)
            self._lanes.close()
            self._savers.close()
            self._host.close()
            if self._save_dir is not None:
                save_server(self._save_dir, self._host, self._sessions)
                log.info("saved %d tables to %s", len(self._host.tables), self._save_dir)
        finally:
            self._close_sockets()

    def _turn(self, *, reading: bool = True) -> None:
        """Waits for something to do, and does it."""
        reading = reading and self._queued_bytes < self._most_queued_bytes
        self._poll_lines()
        waits = PATIENCE_MS if self._in_work or self._untold else None
        ready = dict((self._all_ways if reading else self._own_ways).poll(waits))
        if self._inner.fileno() in ready:
            self._inner.recv(4096)
        self._reply()
        for watched in self._gate.sockets:
            if watched in ready:
                self._gate.handle(watched)
        for number, router in enumerate(self._routers):
            if router in ready:
                self._read(number)
        for number in self._polled:
            if number in ready:
                self._read_line(number)

    def _poll_lines(self) -> None:
        """Has the lines polled that there are now."""
        numbers = [] if self._exchange is None else self._exchange.numbers
        if numbers != self._polled:
            for gone in set(self._polled) - set(numbers):
                self._all_ways.unregister(gone)
            for number in numbers:
                self._all_ways.register(number, zmq.POLLIN)
            self._polled = numbers

    def _read_line(self, number: int) -> bool:
        """Takes some messages from a line; false if there were none."""
        assert self._exchange is not None
        line, packets = self._exchange.handle(number)
        if line is None:
            return False
        for packet in packets:
            session = self._sessions.known(line.client)
            if session is None:  # a line is not the first way that a client takes
                self._exchange.drop(line)
                return False
            self._take(session.route, [memoryview(packet)], line)
        return bool(packets)

    def _read(self, number: int) -> bool:
        """Takes some messages from a socket; False if there were none."""
        router = self._routers[number]
        for taken in range(TURN_MESSAGES):
            if not int(router.getsockopt(zmq.EVENTS)) & READABLE:
                return taken > 0
            name, *frames = router.recv_multipart(zmq.NOBLOCK, copy=False)
            self._take((number, name.bytes), [frame.buffer for frame in frames])
        return True

    def _take(self, route: Route, buffers: list[memoryview], line: Line | None = None) -> None:
        """Takes a message, which came over a client's line or else from where `route` says."""
        try:
            request = self._decode(buffers)
            if line is not None and request.client != line.client:
                raise WireError("malformed message: of another client")
        except Unmapped as error:
            self._send(route, [Reply(-1, "unmapped", str(error))], line=line)
        except WireError as error:
            self._complain(route, buffers, error, line)
        else:
            session = self._sessions.hear(request.client, request.low, route, request.sharing)
            session.line = line or session.line
            self._accept(session, request.operations)

    def _decode(self, buffers: list[memoryview]) -> Request:
        largest = max((buffer.nbytes for buffer in buffers), default=0)
        if largest > self._most_frame_bytes:
            raise WireError(f"malformed message: a frame of {largest} bytes, at most {self._most_frame_bytes}")
        return decode_request(buffers, None if self._neighbours is None else self._neighbours.view_of)

    def _complain(self, route: Route, buffers: list[memoryview], error: WireError, line: Line | None) -> None:
        """Answers a message that breaks the format, with the numbers of its operations if they can be read."""
        self._malformed += 1
        if seldom(self._malformed):
            log.warning("%s (%d so far)", error, self._malformed)
        numbers = numbers_of(buffers)
        self._send(route, [Reply(-1, "error", str(error), [] if numbers is None else [numbers])], line=line)

    def _accept(self, session: Session, operations: list[Operation]) -> None:
        """Hands new operations to the workers, those on one table in a row as one job, and answers the rest."""
        answers: list[Reply] = []
        accepted: list[Accepted] = []
        for operation in operations:
            reply_bytes = self._host.reply_bytes(operation)
            room = not reply_bytes or not self._outgoing.full(session.route)
            verdict = session.judge(operation.seq, room=room)
            if verdict in (Verdict.NEW, Verdict.LOST):
                self._outgoing.begin(session.route, reply_bytes)
                accepted.append(Accepted(operation, verdict is Verdict.LOST, reply_bytes))
            elif verdict is Verdict.REPEAT:
                answers.append(session.replies[operation.seq])
            elif verdict is Verdict.HELD:
                answers.append(Reply(operation.seq, "held"))
            elif verdict is not Verdict.STALE:
                status = "gap" if verdict is Verdict.GAP else "busy"
                answers.append(Reply(operation.seq, status, session.next))
        for (table, save), group in groupby(accepted, lambda one: (one.operation.table, one.operation.verb == "save")):
            self._work(session, table, list(group), self._savers if save else self._lanes)
        if answers:
            self._answer(session, answers)

    def _work(self, session: Session, table: str, batch: list[Accepted], lanes: Lanes) -> None:
        size = sum(one.operation.nbytes for one in batch)
        load = Load(size, sum(one.reply_bytes for one in batch), session.route)
        self._requests += len(batch)
        self._in_work += 1
        self._queued_bytes += size
        near, sharing, room, ground = self._neighbours, session.sharing, None, None
        if near is not None and sharing is not None and near.shares(sharing):
            room = functools.partial(near.rows, sharing.offer)
            if any(one.operation.verb == "meet" for one in batch) and (view := near.view_of(sharing)) is not None:
                ground = Ground(view.memory, near.arena.take)

        def job() -> None:
            replies: list[Answer] = []
            for operation, again, _ in batch:
                if not table:
                    replies.append((session, self._stats(operation)))
                    continue
                replies += self._host.run(operation, again=again, client=session, room=room, ground=ground)
            self._outbox.append((replies, load))
            if _is_full(session, load) or any(reply.status != "held" for _, reply in replies):
                self._wake()

        lanes.submit(table, job)

    def _reply(self) -> None:
        """Sends what the workers have done; what is done for one client as one message."""
        if self._neighbours is not None and self._neighbours.crowded:
            self._neighbours.leave_the_dead()
        now = time.monotonic()
        done: dict[bytes, tuple[Session, list[Reply]]] = {}
        while self._outbox:
            replies, load = self._outbox.popleft()
            self._in_work -= 1
            self._queued_bytes -= load.request_bytes
            self._outgoing.end(load.route, load.reply_bytes)
            for session, reply in replies:
                self._sessions.finish(session, reply)
                if reply.status != "held":
                    done.setdefault(session.client, (session, []))[1].append(reply)
                elif _is_full(session, load):
                    done.setdefault(session.client, (session, []))[1].extend(session.tell())
                else:
                    self._untold.append((now, session))
        while self._untold and now - self._untold[0][0] >= PATIENCE_MS / 1e3:
            _, session = self._untold.popleft()
            if waiting := session.tell():
                done.setdefault(session.client, (session, []))[1].extend(waiting)
        for session, own in done.values():
            for first in range(0, len(own), MAX_OPERATIONS):
                self._answer(session, own[first : first + MAX_OPERATIONS])

    def _answer(self, session: Session, replies: Iterable[Reply]) -> None:
        """Sends replies, and the offer of shared memory to a client that could map it and has not."""
        near, sharing, arena, offer = self._neighbours, session.sharing, None, None
        if near is not None and near.shares(sharing):
            arena = near.arena
        elif near is not None and sharing is not None and near.view_of(sharing) is not None:
            offer = near.arena.offer
        self._send(session.route, replies, arena, offer, session.line)

    def _send(
        self, route: Route, replies: Iterable[Reply], arena: Arena | None = None, offer: Offer | None = None,
        line: Line | None = None,
    ) -> None:  # fmt: skip
        number, _ = route
        frames = encode_replies(replies, piece_bytes=piece_bytes(self.addresses[number]), arena=arena, offer=offer)
        if line is None or len(frames) > 1 or not line.send(frames[0]):
            self._outgoing.send(self._routers[number], route, frames)

    def _stats(self, operation: Operation) -> Reply:
        """The server's own numbers: what an operation on no table asks for."""
        if operation.verb != "stats":
            return Reply(operation.seq, "invalid", f"{operation.verb}: needs a table")
        value = {
            "tables": sorted(self._host.tables), "clients": len(self._sessions), "requests": self._requests,
            "malformed": self._malformed, "refused": self._gate.refused,
            "sharing": 0 if self._neighbours is None else len(self._neighbours),
            "shared_bytes": 0 if self._neighbours is None else self._neighbours.arena.held_bytes,
            "held_bytes": sum(hosted.gathering.held_bytes for hosted in list(self._host.tables.values())),
            "queued_bytes": self._queued_bytes, "reply_bytes": self._outgoing.nbytes,
            "kept_bytes": self._sessions.kept_bytes, "uptime_s": time.monotonic() - self._started_s, "pid": os.getpid(),
        }  # fmt: skip
        return Reply(operation.seq, "ok", value)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full: it will wake anyway; closed: it has ended
            self._outer.send(b"\0")

    def _close_sockets(self) -> None:
        self._host.close()
        self._gate.close()
        for router in self._routers:
            router.close()
        self._context.term()
        if self._neighbours is not None:
            self._neighbours.arena.close()
        if self._exchange is not None:
            self._exchange.close()
        self._inner.close()
        self._outer.close()
        self._locks.close()


def _is_full(session: Session, load: Load) -> bool:
    """Whether a client has to hear what waits, as it may not send more before that."""
    return len(session.untold) >= UNTOLD or load.request_bytes >= UNTOLD_BYTES
