"""A method that scores a few placements and stops: what the simple baselines have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from heterps.schedule.objective import Scores
from heterps.schedule.problem import Placements, Problem


class Fixed:
    """Proposes the given placements once; those that a type cannot run are left out."""

    proved = 0.0
    cutoff = math.inf

    def __init__(self, problem: Problem, placements: Sequence[NDArray[np.int32]]) -> None:
        batch = np.array(placements, dtype=np.int32).reshape(-1, problem.layers)
        runs = problem.runnable[np.arange(problem.layers), batch].all(axis=1)
        self._batch: Placements = batch[runs]
        self._none = np.empty((0, problem.layers), dtype=np.int32)

    def propose(self) -> Placements:
        """All placements, once."""
        batch, self._batch = self._batch, self._none
        return batch

    def feedback(self, placements: Placements, scores: Scores) -> None:
        """Nothing is learnt."""
