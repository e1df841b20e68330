"""Which process is the coordinator of a run: the last one that said so, in a file beside the checkpoints.

Ray makes a new coordinator when it takes the old one for dead. An old one that was only cut off, or frozen, and comes
back finds that the lease is another's: it commits nothing any more, and ends.
"""

from __future__ import annotations

import uuid
from typing import Any

from heterps.errors import HeterPSError
from heterps.runtime.cluster.history import History


class LeaseLost(HeterPSError):
    """Another coordinator has taken the run over."""


class Lease:
    """The right to write the facts, losses and checkpoints of a run."""

    def __init__(self, history: History) -> None:
        """Takes the run over: whoever had it has it no more."""
        self._history, self._token = history, uuid.uuid4().hex
        self.found = history.facts() or {}
        """What the one before noted; empty if there was none."""
        self._write(self.found)

    def note(self, facts: dict[str, Any]) -> None:
        """Replaces the facts."""
        self.check()
        self._write(facts)

    def check(self) -> None:
        """Returns if the run is still this one's.

        Raises:
            LeaseLost: if another one has taken it over, or if it is over and cleared away.
        """
        facts = self._history.facts()
        if facts is None or facts.get("coordinator") != self._token:
            raise LeaseLost("another coordinator has taken this run over; nothing of this one counts any more")

    def _write(self, facts: dict[str, Any]) -> None:
        self._history.note({**facts, "coordinator": self._token})
