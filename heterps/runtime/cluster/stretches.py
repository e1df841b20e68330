"""How far the replicas of a run go at a call, and how far beyond it they may be when they answer. Decides only.

A call is answered at the end of a stretch of steps. Meanwhile replicas go on with the next stretch, so that no core
waits for the answer and the next call. Where something is to be done that needs all of them at one step (a checkpoint,
an evaluation, the end), they go no further than that, and stand still.
"""

from __future__ import annotations

from collections.abc import Sequence

STRETCH_S = 2.0
"""Seconds of a stretch: what a call costs vanishes in it, and a Ctrl-C is heard after two of them."""
FIRST_STEPS = 4
"""Steps of the first stretch, from which the speed is known."""


class Stretches:
    """The stretches of one attempt, from step `step` on."""

    def __init__(self, step: int, *, steps: int | None, every: Sequence[int] = ()) -> None:
        """Stops at `steps` (None: nowhere), and at the multiples of each of `every`."""
        self._steps, self._every = steps, tuple(every)
        self._size = FIRST_STEPS
        self.allowed = step
        """The step up to which replicas may go unasked."""

    def next(self, step: int, *, halt: bool = False) -> tuple[int, int]:
        """Where the stretch from `step` on ends, and how far replicas may go meanwhile; with `halt`, no further."""
        until = self.allowed if self.allowed > step else self._end(step)
        self.allowed = until if halt or self._is_stop(until) else self._end(until)
        return until, self.allowed

    def took(self, steps: int, seconds: float) -> None:
        """Learns from a stretch how many steps the next ones should have."""
        if steps > 0 and seconds > 0:
            self._size = max(1, min(2 * self._size, int(STRETCH_S * steps / seconds)))

    def _end(self, step: int) -> int:
        stops = [(step // every + 1) * every for every in self._every]
        return min([step + self._size, *stops, *([] if self._steps is None else [self._steps])])

    def _is_stop(self, step: int) -> bool:
        return step == self._steps or any(step % every == 0 for every in self._every)
