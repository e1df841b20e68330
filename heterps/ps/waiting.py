"""Pulls that were asked for ahead: held until the step before them is applied, then answered at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from heterps.errors import InvalidInput
from heterps.ps.wire import Operation

MAX_PULLS = 4096
"""Of one table (assumed: a few for each worker of a job)."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A pull of a client, to be answered when the step `after` is applied."""

    client: Any
    operation: Operation
    after: int
    room: Any
    """As for `Host.run`."""


class Waiting:
    """The pulls of one table that wait."""

    def __init__(self) -> None:
        self._pulls: list[Ahead] = []

    @property
    def held_bytes(self) -> int:
        """Bytes of their ids."""
        return sum(pull.operation.nbytes for pull in self._pulls)

    def add(self, pull: Ahead) -> None:
        """Takes one more; refuses it if there are too many."""
        if len(self._pulls) >= MAX_PULLS:
            raise InvalidInput(f"{MAX_PULLS} pulls wait for steps already; is a client missing?")
        self._pulls.append(pull)

    def due(self, applied: int | None) -> Iterator[Ahead]:
        """Gives those that the steps up to `applied` were missing for, one by one, in the order they came."""
        while applied is not None:
            pull = next((pull for pull in self._pulls if pull.after <= applied), None)
            if pull is None:
                return
            self._pulls.remove(pull)
            yield pull

    def abandon(self) -> Iterator[Ahead]:
        """Gives them all up."""
        pulls, self._pulls = self._pulls, []
        yield from pulls
