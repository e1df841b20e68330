"""What a server remembers of each client, so that a request sent twice is applied once.

A client numbers its operations for a server 0, 1, 2, ... and sends them in order; the server accepts only the next
number. A later one means that something was lost: the client is told to go back. An earlier one was sent again: if it
is in work, the client is told to wait; if it is done, it gets the same reply. A client names the least number that it
has no reply for, and what lies below is forgotten. All this outlives connections: 16 bytes of its own name the client.

A part of a gathered push may be held for long, as it waits for other clients; it is then no longer in work, and blocks
nothing. It is not done either: a server that restarts has lost it, and takes it once more.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from heterps.ps.near import Line
from heterps.ps.wire import Reply, Sharing

REMEMBERED_BYTES = 64 << 20
"""Replies kept for one client. Beyond, a repeated pull is read again, without being counted as another sight."""
REMEMBERED_REPLIES = 4096
"""The same in number, while a held part keeps the client's least number down: more than a client has under way."""
KEPT_BYTES = 256 << 20
"""The same for all clients: of those heard of longest ago, which may be no more, replies with rows go first."""
MAX_SESSIONS = 16_384
"""Clients remembered; the one heard of longest ago is forgotten first (assumed: far above a job's workers)."""


Route = tuple[int, bytes]
"""A connection: the number of the server's socket, and the name that the socket gave it."""


class Verdict(Enum):
    """What to do with an operation."""

    NEW = auto()
    GAP = auto()
    """An earlier one is missing: the client goes back."""
    BUSY = auto()
    """In work, or too many are: the client waits."""
    HELD = auto()
    """Waits for parts of other clients."""
    REPEAT = auto()
    """Done, and its reply is at hand."""
    LOST = auto()
    """Done, but its reply is not at hand."""
    STALE = auto()
    """The client has its reply: nothing to do."""


@dataclass(slots=True)
class Session:
    """One client at one server."""

    window: int
    """Operations of this client that may be in work."""
    client: bytes = b""
    next: int = 0
    low: int = 0
    route: Route = (0, b"")
    """Its present connection."""
    line: Line | None = None
    """A shorter way to it, if there is one."""
    sharing: Sharing | None = None
    """What it said last of shared memory."""
    working: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    untold: set[int] = field(default_factory=set)
    """Of these, the ones that the client takes to be on the way."""
    lost: set[int] = field(default_factory=set)
    """Held when the server ended: to be taken once more."""
    replies: dict[int, Reply] = field(default_factory=dict)
    remembered_bytes: int = 0

    def hear(self, low: int, route: Route, sharing: Sharing | None = None) -> None:
        """A message came over `route`: the client has all replies below `low`."""
        self.route, self.sharing = route, sharing
        if low > self.low:
            for seq in [seq for seq in self.replies if seq < low]:
                self.remembered_bytes -= self.replies.pop(seq).nbytes
            self.low = low
            self.next = max(self.next, low)  # what the client gave up does not come any more

    def judge(self, seq: int, *, room: bool = True) -> Verdict:
        """What to do with operation `seq`. A new one is in work from now on, and so is one whose reply is lost.

        Without `room` for its reply, it waits.
        """
        if seq < self.low:
            return Verdict.STALE
        if seq > self.next:
            return Verdict.GAP
        if seq == self.next:
            if not room or len(self.working) >= self.window:
                return Verdict.BUSY
            self.next += 1
            self.working.add(seq)
            return Verdict.NEW
        if seq in self.lost:
            self.lost.discard(seq)
            self.working.add(seq)
            return Verdict.NEW
        if seq in self.held:
            return Verdict.HELD
        if seq in self.working or not room:
            return Verdict.BUSY
        if seq in self.replies:
            return Verdict.REPEAT
        self.working.add(seq)
        return Verdict.LOST

    def finish(self, reply: Reply) -> None:
        """An operation is done: remembers its reply, if the client may still ask for it and it is not too large.

        One that is held now leaves the work, but is not done.
        """
        self.working.discard(reply.seq)
        if reply.status == "held":
            self.held.add(reply.seq)
            self.untold.add(reply.seq)
            return
        self.held.discard(reply.seq)
        self.untold.discard(reply.seq)
        if reply.seq >= self.low and self.remembered_bytes + reply.nbytes <= REMEMBERED_BYTES:
            self.replies[reply.seq] = reply
            self.remembered_bytes += reply.nbytes
            if len(self.replies) > REMEMBERED_REPLIES:
                self.remembered_bytes -= self.replies.pop(next(iter(self.replies))).nbytes

    def tell(self) -> list[Reply]:
        """That operations are held, of those of which the client has not been told."""
        untold, self.untold = sorted(self.untold), set()
        return [Reply(seq, "held") for seq in untold]

    def forget_rows(self) -> None:
        """Drops the replies with arrays: what they answer is read again if it is asked for again."""
        self.replies = {seq: reply for seq, reply in self.replies.items() if not reply.nbytes}
        self.remembered_bytes = 0


class Sessions:
    """All clients of a server."""

    def __init__(self, *, window: int) -> None:
        self._window = window
        self.kept_bytes = 0
        """Replies kept for all clients."""
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def hear(self, client: bytes, low: int, route: Route, sharing: Sharing | None = None) -> Session:
        """The client's session, made at its first message, which may come in the middle of its life."""
        session = self._sessions.get(client)
        if session is None:
            session = self._sessions[client] = Session(self._window, client, next=low, low=low)
            self._forget()
        self._sessions.move_to_end(client)
        before = session.remembered_bytes
        session.hear(low, route, sharing)
        self.kept_bytes += session.remembered_bytes - before
        return session

    def known(self, client: bytes) -> Session | None:
        """The client's session; None if it was not heard of, or is forgotten."""
        return self._sessions.get(client)

    def finish(self, session: Session, reply: Reply) -> None:
        """An operation of a client is done; see `Session.finish`."""
        before = session.remembered_bytes
        session.finish(reply)
        self.kept_bytes += session.remembered_bytes - before
        if self.kept_bytes > KEPT_BYTES:
            self._forget_rows()

    def _forget_rows(self) -> None:
        for session in self._sessions.values():
            if self.kept_bytes <= KEPT_BYTES:
                return
            if session.remembered_bytes:
                self.kept_bytes -= session.remembered_bytes
                session.forget_rows()

    def to_dict(self) -> dict[str, Any]:
        """The next number of each client, to be saved, and with it what is held, if anything is."""
        return {
            client.hex(): {"next": session.next, "held": sorted(session.held)} if session.held else session.next
            for client, session in self._sessions.items()
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """The inverse of `to_dict`: what was done before a restart is not done again, but what was held is."""
        for name, entry in saved.items():
            client = bytes.fromhex(name)
            number, held = (entry["next"], entry["held"]) if isinstance(entry, dict) else (entry, [])
            self._sessions[client] = Session(self._window, client, next=number, lost=set(held))

    def _forget(self) -> None:
        while len(self._sessions) > MAX_SESSIONS:
            idle = next((c for c, session in self._sessions.items() if not session.working and not session.held), None)
            if idle is None:
                return
            self.kept_bytes -= self._sessions.pop(idle).remembered_bytes
