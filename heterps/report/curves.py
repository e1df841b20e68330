"""Curves of bounded size, made from streams of any length."""

from __future__ import annotations

import math

MOST_POINTS = 500


class Curve:
    """Points with rising steps, of which at most `most` are kept: every one, then every second, every fourth and so on.

    The last point is always among them. A step that was there before (a run that went on from a checkpoint) takes the
    place of what followed it.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._room = max(2, (most - 1) // 2 * 2)
        """Of the kept points: one place is for the last, and of an even number half are left at even distances."""
        self._points: list[tuple[float, float]] = []
        self._last: tuple[float, float] | None = None
        self._every = 1
        self._waiting = 0
        """Points to pass over before the next one is kept."""

    def add(self, step: float, value: float) -> None:
        """One more point."""
        if self._last is not None and step <= self._last[0]:
            while self._points and self._points[-1][0] >= step:
                self._points.pop()
            self._waiting = 0
        self._last = step, value
        if self._waiting:
            self._waiting -= 1
            return
        if len(self._points) >= self._room:
            del self._points[1::2]
            self._every *= 2
        self._points.append(self._last)
        self._waiting = self._every - 1

    @property
    def last(self) -> tuple[float, float] | None:
        """The newest point."""
        return self._last

    def points(self) -> list[list[float | None]]:
        """[step, value] of the kept points; a value that JSON does not know is None."""
        kept = list(self._points)
        if self._last is not None and (not kept or kept[-1] != self._last):
            kept.append(self._last)
        return [[step, value if math.isfinite(value) else None] for step, value in kept]
