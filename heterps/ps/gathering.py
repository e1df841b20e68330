"""Parts of one push that come from several clients: held until all are there, then applied as one.

Optimizers are not linear: two pushes are not one. The parts of a step are put together in the order of their numbers,
whoever comes first, so the result does not depend on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from heterps.errors import InvalidInput
from heterps.ps.wire import Array

MAX_STEPS = 1024
"""Steps of one table with parts that wait for others (assumed: far above any staleness)."""
MAX_PARTS = 65_536


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a part; mostly the only one, but large parts travel in several."""

    client: Any
    seq: int
    step: int
    part: int
    parts: int
    piece: int
    pieces: int
    lr: float | None
    ids: Array
    grads: Array

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.ids.nbytes + self.grads.nbytes


@dataclass(slots=True)
class Step:
    """What is there of a step, by part and piece."""

    parts: int
    pieces: dict[tuple[int, int], Part] = field(default_factory=dict)
    missing: dict[int, int] = field(default_factory=dict)
    """Pieces that lack, of the parts of which some are there."""

    @property
    def complete(self) -> bool:
        """True if everything is there."""
        return len(self.missing) == self.parts and not any(self.missing.values())

    @property
    def lr(self) -> float | None:
        """The learning rate that its parts name, if any does."""
        return next((part.lr for part in self.pieces.values() if part.lr is not None), None)

    def in_order(self) -> list[Part]:
        """All pieces of all parts, in their order."""
        return [self.pieces[key] for key in sorted(self.pieces)]


class Gathering:
    """The steps of one table that wait for parts. Steps are taken in order: the lowest one first, and none twice."""

    def __init__(self) -> None:
        self._steps: dict[int, Step] = {}
        self.applied: int | None = None
        """The last step that was taken; None: none, or steps have begun anew."""
        self.held_bytes = 0

    def add(self, part: Part) -> None:
        """Takes a piece; refuses one that does not fit what is there."""
        _check(part)
        if self.applied is not None and part.step <= self.applied:
            raise InvalidInput(f"step {part.step} is over: {self.applied} was applied; abandon starts anew")
        step = self._steps.get(part.step)
        if step is None:
            if len(self._steps) >= MAX_STEPS:
                raise InvalidInput(f"{MAX_STEPS} steps wait for parts already; is a client missing?")
            step = Step(part.parts)
        pieces = part.pieces - step.missing.get(part.part, part.pieces)  # that are there
        known = [other for other in step.pieces.values() if other.part == part.part] if pieces else []
        if step.parts != part.parts or any(other.pieces != part.pieces for other in known):
            raise InvalidInput(f"step {part.step} has {step.parts} parts, whose pieces agree in number")
        if (part.part, part.piece) in step.pieces or any(other.client is not part.client for other in known):
            raise InvalidInput(f"part {part.part} of step {part.step} is here already")
        if part.lr is not None and step.lr not in (None, part.lr):
            raise InvalidInput(f"lr of step {part.step}: {step.lr} for other parts, not {part.lr}")
        step.pieces[part.part, part.piece] = part
        step.missing[part.part] = step.missing.get(part.part, part.pieces) - 1
        self._steps[part.step] = step
        self.held_bytes += part.nbytes

    def take(self) -> Step | None:
        """The lowest step, if it is complete: it counts as applied now."""
        number = min(self._steps, default=None)
        if number is None or not self._steps[number].complete:
            return None
        self.applied = number
        return self._remove(number)

    def abandon(self) -> Iterator[Part]:
        """Drops everything; steps may begin anew with any number."""
        self.applied = None
        for number in sorted(self._steps):
            yield from self._remove(number).in_order()

    def _remove(self, number: int) -> Step:
        step = self._steps.pop(number)
        self.held_bytes -= sum(part.nbytes for part in step.pieces.values())
        return step


def _check(part: Part) -> None:
    if part.step < 0:
        raise InvalidInput(f"step: at least 0, not {part.step}")
    for what, number, count in (("part", part.part, part.parts), ("piece", part.piece, part.pieces)):
        if not 0 <= number < count <= MAX_PARTS:
            raise InvalidInput(f"{what} {number} of {count} does not exist")
