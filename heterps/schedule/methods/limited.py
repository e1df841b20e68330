"""Methods on an objective whose scores are rationed, such as one that is simulated."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from heterps.schedule.objective import Objective, Scores
from heterps.schedule.problem import Placements
from heterps.schedule.search import Method


@runtime_checkable
class Rationed(Protocol):
    """An objective that does a limited amount of work; what is not scored before it is spent counts as infeasible."""

    @property
    def left(self) -> float:
        """What may still be spent; 0 or less: nothing."""
        ...


class Limited:
    """A method that stops when its objective has nothing left."""

    def __init__(self, method: Method, objective: Objective) -> None:
        self._method = method
        self._objective = objective

    @property
    def proved(self) -> float:
        """Of the method."""
        return self._method.proved

    @property
    def cutoff(self) -> float:
        """Of the method."""
        return self._method.cutoff

    def propose(self) -> Placements:
        """The method's proposal, or none if nothing is left to score it with."""
        if isinstance(self._objective, Rationed) and self._objective.left <= 0:
            return np.empty((0, self._objective.problem.layers), dtype=np.int32)
        return self._method.propose()

    def feedback(self, placements: Placements, scores: Scores) -> None:
        """Passed on."""
        self._method.feedback(placements, scores)
