"""`brute-force`: every placement, each with its exactly optimal units."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from heterps.errors import InvalidInput
from heterps.schedule.objective import Objective, Scores
from heterps.schedule.problem import Placements
from heterps.schedule.search import Settings

MAX_PLACEMENTS = 2_000_000
"""Some minutes of scoring."""

BATCH = 8192


class BruteForce:
    """Scores every placement that runs; refuses, with the count, when there are too many."""

    def __init__(self, objective: Objective, settings: Settings) -> None:
        problem = objective.problem
        self._choices = [np.flatnonzero(row).astype(np.int32) for row in problem.runnable]
        self._count = math.prod(len(choices) for choices in self._choices)
        if self._count > MAX_PLACEMENTS:
            raise InvalidInput(
                f"brute-force would try {self._count:,} placements, more than {MAX_PLACEMENTS:,}; use method exact"
            )
        self.proved = 0.0
        self._best = math.inf
        self._batches = self._enumerate()

    @property
    def cutoff(self) -> float:
        """Only better placements matter."""
        return self._best

    def propose(self) -> Placements:
        """The next batch of placements."""
        batch = next(self._batches, None)
        if batch is None:
            self.proved = self._best * (1 - 2e-7)  # the slack of provisioning unlimited types
            return np.empty((0, len(self._choices)), dtype=np.int32)
        return batch

    def feedback(self, placements: Placements, scores: Scores) -> None:
        """Remembers the best value: once all are scored it is the optimum."""
        self._best = min(self._best, float(scores.value.min()))

    def _enumerate(self) -> Iterator[Placements]:
        sizes = [len(choices) for choices in self._choices]
        for start in range(0, self._count, BATCH):
            picks = np.unravel_index(np.arange(start, min(start + BATCH, self._count)), sizes)
            columns = [choices[pick] for choices, pick in zip(self._choices, picks, strict=True)]
            yield np.stack(columns, axis=1).astype(np.int32)
