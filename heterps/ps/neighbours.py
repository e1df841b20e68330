"""The clients of a server that share its memory: their arenas as it sees them, and its own as they see it."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from heterps.ps.shared import LEAST_BYTES, Arena, Offer, View
from heterps.ps.wire import Sharing

MAX_NEIGHBOURS = 1024
"""Arenas that a server maps; further clients get messages (assumed)."""
REST_S = 1.0
"""Between two searches for the dead when there are that many."""


class Neighbours:
    """Maps the arenas of clients, and gives out blocks of the server's. Blocks and memory of the dead come back."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._views: dict[Offer, View] = {}
        self._searched_s = -REST_S
        self.crowded = False
        """There was no room for someone: time to look for blocks of the dead."""

    def __len__(self) -> int:
        return len(self._views)

    def view_of(self, sharing: Sharing) -> View | None:
        """The arena of a client; None if it cannot be mapped. Only for the server's own thread."""
        view = self._views.get(sharing.offer)
        if view is None and (view := View.open(sharing.offer)) is not None:
            full = len(self._views) >= MAX_NEIGHBOURS
            if not full or time.monotonic() - self._searched_s > REST_S:
                self.leave_the_dead()
            if len(self._views) >= MAX_NEIGHBOURS:
                return None
            self._views[sharing.offer] = view
        return view

    def shares(self, sharing: Sharing | None) -> bool:
        """True if that client has mapped the server's arena."""
        return sharing is not None and sharing.mapped == self.arena.offer.token

    def rows(self, receiver: Offer, shape: tuple[int, int]) -> NDArray[np.float32] | None:
        """Room for rows to be sent to a client; None if they are few, or there is none. For any thread."""
        nbytes = 4 * shape[0] * shape[1]
        if nbytes < LEAST_BYTES:
            return None
        taken = self.arena.take(nbytes, receiver)
        if taken is None:
            self.crowded = True
            return None
        return taken[1].view(np.float32).reshape(shape)

    def leave_the_dead(self) -> None:
        """Lets go of the arenas of clients that ended, and takes the blocks back that they had."""
        self.crowded, self._searched_s = False, time.monotonic()
        for offer in list(self._views):
            if View.open(offer) is None:
                del self._views[offer]
                self.arena.take_back(offer)
