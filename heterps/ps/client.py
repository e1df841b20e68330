"""The client of parameter servers: tables that live in other processes."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from heterps._native import DESK_BYTES
from heterps.errors import InvalidInput
from heterps.ps.channel import Channel
from heterps.ps.desk import Desk
from heterps.ps.errors import ServerError
from heterps.ps.keys import Keys
from heterps.ps.remote import RemoteTable
from heterps.ps.rows import COMPRESS, Compress
from heterps.ps.shared import LEAST_BYTES, Arena
from heterps.ps.wire import CLIENT_BYTES, Array, Reply
from heterps.store.config import TableConfig

log = logging.getLogger("heterps.ps")


class Client:
    """Talks to the servers at `addresses`, each with a shard of every table; all clients name them in the same order.

    A server that is quiet for `timeout_s` is asked again, `retries` times, before what waits for it raises
    `ServerTimeout`. `compress` sends rows and gradients as bf16 or fp16. With servers on its own machine it shares
    memory (`shared`): large arrays cross in it, as they are, and `compress` does nothing. May be used from several
    threads.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        keys: Keys | None = None,
        *,
        timeout_s: float = 10.0,
        retries: int = 5,
        compress: Compress | None = None,
        io_threads: int = 1,
        shared: bool = True,
    ) -> None:
        if isinstance(addresses, str) or not addresses:
            raise InvalidInput(f"addresses: a list with one address for each shard, not {addresses!r}")
        if compress is not None and compress not in COMPRESS:
            raise InvalidInput(f"compress: one of {', '.join(COMPRESS)} or None, not {compress!r}")
        if timeout_s <= 0 or retries < 0:
            raise InvalidInput(f"timeout_s is positive and retries at least 0, not {timeout_s!r} and {retries!r}")
        self.compress = compress
        self._inner, self._outer = socket.socketpair()
        self._inner.setblocking(False)
        self._outer.setblocking(False)
        self._stopping = self._giving_up = False
        self._context: zmq.Context[Any] = zmq.Context(io_threads)
        self._arena = Arena() if shared else None
        identity = os.urandom(CLIENT_BYTES)
        self._channels: list[Channel] = []
        try:
            for address in addresses:
                channel = Channel(
                    self._context, address, keys, identity, timeout_s=timeout_s, retries=retries, arena=self._arena
                )
                self._channels.append(channel)
        except BaseException:
            self._end("the client failed to start")
            raise
        self._thread = threading.Thread(target=self._loop, name="heterps-ps-client", daemon=True)
        self._thread.start()

    @property
    def shards(self) -> int:
        """Servers, each with one shard of every table."""
        return len(self._channels)

    def table(self, config: TableConfig) -> RemoteTable:
        """The table of that name on the servers, made if there is none; one with another configuration is an error."""
        args = [{"config": config.to_dict(), "shard": k, "shards": self.shards} for k in range(self.shards)]
        for future in [self.submit(k, "open", config.name, args[k]) for k in range(self.shards)]:
            future.result()
        return RemoteTable(self, config)

    def stats(self) -> list[dict[str, Any]]:
        """What each server says of itself: tables, clients, requests, malformed, refused and more."""
        futures = [self.submit(k, "stats", "", {}) for k in range(self.shards)]
        return [dict(future.result().value) for future in futures]

    def shares(self, shard: int) -> bool:
        """True if that server is on this machine, and large arrays cross in memory shared with it."""
        return self._channels[shard].shares

    def piece_bytes(self, shard: int) -> int:
        """Bytes that travel from that server in one frame: larger arrays have to be put together."""
        return self._channels[shard].piece_bytes

    def room(self, shard: int, shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
        """An empty array for one operation on a shard: in shared memory if that helps, and there is room.

        It belongs to the operation that it is submitted with, and must be submitted.
        """
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        if self._arena is None or nbytes < LEAST_BYTES or not self.shares(shard):
            return np.empty(shape, dtype)
        taken = self._arena.take(nbytes)
        return np.empty(shape, dtype) if taken is None else taken[1].view(dtype).reshape(shape)

    def meet(self, shard: int, table: str, args: dict[str, Any]) -> Callable[[], Desk | None]:
        """Tells a shard that this client wants to hand in parts of a table at a desk; see `RemoteTable.meet`.

        What it gives waits for the others, and is the desk; None if not all can have one.
        """
        channel, arena = self._channels[shard], self._arena
        lent = None if arena is None or not channel.shares else arena.take(DESK_BYTES)
        if lent is not None:
            lent[1][:] = 0
        answer = self.submit(shard, "meet", table, {**args, "desk": None if lent is None else lent[0][0]})

        def met() -> Desk | None:
            place, view = answer.result().value, channel.view
            if place is None or arena is None or lent is None:
                return None
            if view is None:
                raise ServerError(f"{channel.address}: shared memory is lost")
            return Desk(arena, view, channel.address, lent[1], tuple(place))

        return met

    def submit(
        self, shard: int, verb: str, table: str, args: dict[str, Any], arrays: Sequence[Array] = ()
    ) -> Future[Reply]:
        """Sends one operation to one shard, in order with all others of this client; its reply comes later."""
        channel = self._channels[shard]
        future = channel.submit(verb, table, args, list(arrays))
        if not channel.hurry():
            self._wake()
        return future

    def close(self, *, wait: bool = True) -> None:
        """Waits until everything sent is answered (or given up), then ends; parts held for other clients fail.

        Without `wait`, what has no answer fails at once: for servers that are known to be gone.
        """
        self._giving_up |= not wait
        if self._stopping and wait:
            return
        self._stopping = True
        with suppress(ServerError):  # the thread may have seen it already, and be gone
            self._wake()
        self._thread.join()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _loop(self) -> None:
        reason = "the client is closed"
        try:
            poller, ways = zmq.Poller(), list[Any]()
            while not (self._stopping and (self._giving_up or all(channel.idle for channel in self._channels))):
                if ways != (ways := [self._inner, *(way for channel in self._channels for way in channel.ways)]):
                    poller = _poller(ways)
                self._turn(poller)
        except Exception as error:
            log.exception("the client's thread failed")
            reason = f"the client's thread failed: {error}"
        finally:
            self._end(reason)

    def _turn(self, poller: zmq.Poller) -> None:
        """Waits for something to do, and does it."""
        deadlines = [deadline for channel in self._channels if (deadline := channel.deadline_s()) is not None]
        timeout_ms = int(max(0.0, (min(deadlines) - time.monotonic()) * 1e3)) + 1 if deadlines else None
        ready = dict(poller.poll(timeout_ms))
        if self._inner.fileno() in ready:
            self._inner.recv(4096)
            for channel in self._channels:
                channel.pump()
        for channel in self._channels:
            if any(way in ready for way in channel.ways):
                channel.receive()
        for channel in self._channels:
            channel.check()

    def _wake(self) -> None:
        try:
            self._outer.send(b"\0")
        except BlockingIOError:
            pass  # it will wake anyway
        except OSError:
            raise ServerError("the client is closed") from None

    def _end(self, reason: str) -> None:
        for channel in self._channels:
            channel.close(reason)
        self._context.term()
        if self._arena is not None:
            self._arena.close()
        self._inner.close()
        self._outer.close()


def _poller(ways: list[Any]) -> zmq.Poller:
    poller = zmq.Poller()
    for way in ways:
        poller.register(way, zmq.POLLIN)
    return poller
