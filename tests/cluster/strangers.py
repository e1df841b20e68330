"""Who has no business at a run's sockets, and what they try."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

from heterps.ps import Keys
from heterps.ps.keys import protect
from tests.cluster.jobs import PATIENCE_S

Where = tuple[str, int]
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
"""Of ZMTP 3.0: signature and version; then come the mechanism (20 bytes), as-server, and 31 zeros."""
WELCOME = b"\x07WELCOME"
"""What a server says to anybody who knows its public key."""
READY = b"\x05READY"
"""What a server says to whom it lets in; the rest of that command is encrypted."""
LISTENS = "00010000"
"""Flags of such a Unix socket."""


def _sockets(pid: int) -> set[str]:
    held = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            held.add(str(entry.readlink()))
    return held


def listening(pid: int) -> list[Where]:
    """TCP sockets at which a process listens."""
    held = _sockets(pid)
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in held:
            address, port = fields[1].split(":")
            host = socket.inet_ntoa(struct.pack("<I", int(address, 16)))
            found.append(("127.0.0.1" if host == "0.0.0.0" else host, int(port, 16)))
    return found


def doors(pid: int) -> list[str]:
    """Names of Unix sockets at which a process listens; "@" stands for one without a file."""
    held = _sockets(pid)
    fields = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    return [one[7] for one in fields if one[3] == LISTENS and f"socket:[{one[6]}]" in held and len(one) > 7]


def language(where: Where) -> str:
    """What a listening socket speaks: ours is zmtp, Ray's is http2; anything else waits for its caller to begin."""
    with socket.create_connection(where, timeout=PATIENCE_S) as caller:
        try:
            first = caller.recv(16)
        except TimeoutError:
            return "silent"
    if first[:1] == b"\xff":
        return "zmtp"
    return "http2" if first[3:4] == b"\x04" else "silent"


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def greeting(mechanism: bytes) -> bytes:
    return GREETING + mechanism.ljust(20, b"\0") + bytes(32)


def random_bytes(where: Where, rng: random.Random) -> None:
    """Noise alone, and after a greeting as it should be."""
    for start in (b"", greeting(b"NULL"), greeting(b"PLAIN"), greeting(b"CURVE"), greeting(b"CURVE") + b"\x04"):
        _say(where, [start + rng.randbytes(rng.randrange(1, 5000))])


def giant_frame(where: Where, *, stream_bytes: int = 64 << 20) -> None:
    """Says that 2^62 bytes follow, as a message and as a command, and goes on for as long as it is let."""
    block = bytes(1 << 20)
    for flags in (b"\x02", b"\x06"):
        frame = greeting(b"CURVE") + flags + struct.pack(">Q", 1 << 62)
        _say(where, [frame, *[block] * (stream_bytes // len(block))])


def _say(where: Where, parts: list[bytes]) -> bytes:
    """Sends, and hears what comes back until it is hung up on, or for a moment."""
    heard = b""
    with contextlib.suppress(OSError), socket.create_connection(where, timeout=2) as caller:
        for part in parts:
            caller.sendall(part)
        caller.settimeout(0.3)
        while data := caller.recv(65536):
            heard += data
    return heard


def knock_at_door(name: str, rng: random.Random, *, idle: int = 200) -> None:
    """Noise, giant packets and silence at a Unix socket: whoever says something wrong is hung up on."""
    with contextlib.ExitStack() as stack:
        for number in range(idle):
            said = rng.randbytes((1, 16, 48, 5000, 150_000)[number % 5]) if number % 2 else b""
            caller = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            caller.settimeout(PATIENCE_S)
            caller.connect(name.replace("@", "\0", 1))
            if said:
                with contextlib.suppress(ConnectionError):
                    caller.sendall(said)
                    assert caller.recv(1) == b""


@contextmanager
def idlers(where: Where, count: int) -> Iterator[None]:
    """Callers that never say a word, and some that stop in the middle of one."""
    with contextlib.ExitStack() as stack:
        for number in range(count):
            caller = stack.enter_context(socket.create_connection(where, timeout=PATIENCE_S))
            if number % 2:
                caller.sendall(GREETING[: 1 + number % len(GREETING)])
        yield


def foreign_clients(where: Where, keys: Keys) -> Iterator[Callable[[], None]]:
    """Each knocks: without keys, with other ones, and with the server's public key and another client's."""
    other = Keys.generate()
    half = Keys(
        server_public=keys.server_public, server_secret=keys.server_secret,
        client_public=other.client_public, client_secret=other.client_secret,
    )  # fmt: skip
    for given in (None, other, half):
        yield lambda given=given: _knock(where, given)  # type: ignore[misc]


def _knock(where: Where, keys: Keys | None) -> None:
    """Nobody answers, and nothing of it is taken."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.linger = 0
    address = f"tcp://{where[0]}:{where[1]}"
    if keys is not None:
        protect(dealer, address, keys, server=False)
    try:
        dealer.connect(address)
        with contextlib.suppress(zmq.Again):
            for _ in range(3):
                dealer.send_multipart([b"stop", b"{}"], zmq.NOBLOCK)
        assert not dealer.poll(700), dealer.recv_multipart()
    finally:
        dealer.close()
        context.term()


class Tape:
    """A relay that keeps what went through its first connection: (whether it came from the caller, bytes) in order."""

    def __init__(self, target: str) -> None:
        host, _, port = target.removeprefix("tcp://").partition(":")
        self.target: Where = (host, int(port))
        self.kept: list[tuple[bool, bytes]] = []
        self._lock, self._first = threading.Lock(), True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def heard(self) -> bytes:
        """All that the target said."""
        with self._lock:
            return b"".join(data for from_caller, data in self.kept if not from_caller)

    @property
    def bytes_said(self) -> int:
        """By the caller."""
        with self._lock:
            return sum(len(data) for from_caller, data in self.kept if from_caller)

    def replay_at_once(self) -> bytes:
        """All that the caller said, to the target; gives what it answers."""
        with self._lock:
            said = b"".join(data for from_caller, data in self.kept if from_caller)
        return _say(self.target, [said])

    def replay_in_turn(self, parts: int = 40) -> bytes:
        """The same, each part after the answer that it had then."""
        heard = b""
        with self._lock:
            kept = self.kept[:parts]
        with contextlib.suppress(OSError), socket.create_connection(self.target, timeout=PATIENCE_S) as caller:
            for from_caller, data in kept:
                if from_caller:
                    caller.sendall(data)
                elif WELCOME not in heard:  # as far as that it has the same answers, however long they take
                    heard += caller.recv(len(data), socket.MSG_WAITALL)
                else:
                    caller.settimeout(0.5)
                    with contextlib.suppress(TimeoutError):
                        heard += caller.recv(len(data))
        return heard

    def close(self) -> None:
        for end in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
                outer = socket.create_connection(self.target)
            except OSError:
                return
            self._open += [inner, outer]
            keep, self._first = self._first, False
            for from_caller, source, sink in ((True, inner, outer), (False, outer, inner)):
                threading.Thread(target=self._relay, args=(from_caller, source, sink, keep), daemon=True).start()

    def _relay(self, from_caller: bool, source: socket.socket, sink: socket.socket, keep: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if keep:
                    with self._lock:
                        self.kept.append((from_caller, data))
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def until(condition: Callable[[], bool], *, seconds: float = PATIENCE_S, what: str = "") -> None:
    """Waits for a condition of other threads or processes."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.05)
