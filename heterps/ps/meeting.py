"""Clients of a table that agree to hand in the parts of its steps at desks, in memory that they share with the server.

All parts of a step have to come the same way. So the clients that have them meet first: each says which parts it has,
and where its desk is if it has one, and is answered when all have come. If all have desks, a clerk of the native core
serves them from then on, and parts cost no messages; else everybody sends messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from heterps import _native
from heterps.errors import InvalidInput
from heterps.ps.gathering import MAX_PARTS
from heterps.ps.shared import Bytes, Place


@dataclass(frozen=True, slots=True)
class Ground:
    """What a client and the server share."""

    memory: Bytes
    """The client's."""
    lend: Callable[[int], tuple[Place, Bytes] | None]
    """A block of the server's."""


@dataclass(frozen=True, slots=True)
class Guest:
    """A client that has come."""

    client: Any
    seq: int
    """Of its operation, which is to be answered."""
    parts: tuple[int, ...]
    """Numbers of its parts of each step."""
    ground: Ground | None
    desk: int
    """Where its desk lies in its memory, if it has one."""


class Meeting:
    """Those who have come, until all are there."""

    def __init__(self) -> None:
        self._guests: list[Guest] = []
        self._about = (0, 0)

    def join(self, guest: Guest, *, parts: int, first: int) -> list[Guest]:
        """Adds a client, for steps of so many `parts` from `first` on. Gives those whose meeting is over by that."""
        if not (0 < parts <= MAX_PARTS and first >= 0):
            raise InvalidInput(f"meet: 1 to {MAX_PARTS} parts, from a step of at least 0, not {parts} and {first}")
        own = guest.parts
        if not own or len(set(own)) != len(own) or any(type(one) is not int or not 0 <= one < parts for one in own):
            raise InvalidInput(f"meet: some of the parts 0 to {parts - 1}, not {own}")
        came = {part for other in self._guests for part in other.parts}
        gone = self.leave() if self._about != (parts, first) or came & set(own) else []
        self._about = parts, first
        self._guests.append(guest)
        return gone

    @property
    def complete(self) -> bool:
        """True if all parts have come."""
        return bool(self._guests) and sum(len(guest.parts) for guest in self._guests) == self._about[0]

    def leave(self) -> list[Guest]:
        """Ends it; gives those who were there."""
        guests, self._guests = self._guests, []
        return guests


def clerk_for(table: Any, guests: list[Guest], *, parts: int, first: int) -> tuple[_native.Clerk, Place] | None:
    """A clerk that serves all desks, and where its bell is; None if a client has none, or the table no clerk."""
    make = getattr(table, "clerk", None)
    if make is None or any(guest.ground is None for guest in guests):
        return None
    ground = guests[0].ground
    assert ground is not None
    lent = ground.lend(_native.BELL_BYTES)
    if lent is None:
        return None
    place, bell = lent
    bell[:] = 0
    clerk: _native.Clerk | None = make(bell, parts=parts, applied=first - 1)
    if clerk is None:
        return None
    for guest in guests:
        assert guest.ground is not None
        clerk.serve(guest.ground.memory, guest.desk)
    return clerk, place
