"""`exact+local`: the closed form's optimum, improved by local search on another objective.

It climbs from the proved optimum of the cost model: of the placements one move away, first those that shift a cut or
retype a stage, then those that retype any run of layers, it takes the first batch that holds a better one. Where there
is none, it kicks the best placement by random moves and climbs again. On the closed form itself it has nothing to gain.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator

import numpy as np
from numpy.typing import NDArray

from heterps.schedule.methods.exact import Exact
from heterps.schedule.methods.limited import Rationed
from heterps.schedule.neighbours import neighbours, segment_moves
from heterps.schedule.objective import ClosedForm, Objective, Scores
from heterps.schedule.problem import Placements
from heterps.schedule.search import Settings, search

TRIALS = 2000
"""Placements scored where the objective sets no limit itself."""

BATCH = 32
MOVES = 2048
"""Most moves of a run of layers that are looked at from one placement."""

KICKS = 1000
"""Kicks without a better placement after which the search ends."""

Rank = tuple[float, float]
"""Value and violation: infeasible placements come last, the nearest to feasible first."""


class ExactLocal:
    """Iterated local search from the closed form's optimum. The same seed gives the same plan."""

    proved = 0.0
    cutoff = math.inf

    def __init__(self, objective: Objective, settings: Settings) -> None:
        problem = objective.problem
        closed = ClosedForm(problem)
        self._runnable = problem.runnable
        self._rng = np.random.default_rng([settings.seed, 0x10CA])
        self._left: float = TRIALS if settings.trials is None else settings.trials
        if settings.trials is None and isinstance(objective, Rationed):
            self._left = math.inf
        start = search(closed, Exact(closed, settings)).placement
        self._best: NDArray[np.int32] | None = None
        self._best_rank: Rank = (math.inf, math.inf)
        self._steps: Iterator[Placements] = iter(()) if start is None else self._climb_and_kick(start)

    def propose(self) -> Placements:
        """Some placements one move away, or a kicked one."""
        batch = next(self._steps, None) if self._left > 0 else None
        if batch is None:
            return np.empty((0, len(self._runnable)), dtype=np.int32)
        batch = batch[: int(min(self._left, len(batch)))]
        self._left -= len(batch)
        return batch

    def feedback(self, placements: Placements, scores: Scores) -> None:
        """Keeps the best of these and of all."""
        order = np.lexsort((scores.violation, scores.value))
        first = int(order[0])
        self._found, self._found_rank = placements[first], (float(scores.value[first]), float(scores.violation[first]))
        if self._found_rank < self._best_rank:
            self._best, self._best_rank = self._found.copy(), self._found_rank

    def _climb_and_kick(self, start: NDArray[np.int32]) -> Generator[Placements]:
        yield start[None, :]
        yield from self._climb(start, self._found_rank)
        kicks = 0
        while kicks < KICKS:
            assert self._best is not None
            before, kicked = self._best_rank, self._kicked(self._best, strength=1 + kicks % 3)
            if kicked is None:
                return
            yield kicked[None, :]
            yield from self._climb(kicked, self._found_rank)
            kicks = 0 if self._best_rank < before else kicks + 1

    def _climb(self, placement: NDArray[np.int32], rank: Rank) -> Generator[Placements]:
        climbing = True
        while climbing:
            climbing = False
            for batch in self._moves(placement):
                yield batch
                if self._found_rank < rank:
                    placement, rank, climbing = self._found.copy(), self._found_rank, True
                    break

    def _moves(self, placement: NDArray[np.int32]) -> Iterator[Placements]:
        """Near moves, then all; each in a random order and in batches."""
        near = self._rng.permutation(neighbours(placement, self._runnable))
        for i in range(0, len(near), BATCH):
            yield near[i : i + BATCH]
        wide = self._rng.permutation(segment_moves(placement, self._runnable, most=MOVES, rng=self._rng))
        for i in range(0, len(wide), BATCH):
            yield wide[i : i + BATCH]

    def _kicked(self, placement: NDArray[np.int32], *, strength: int) -> NDArray[np.int32] | None:
        """So many random runs of layers retyped; None if no type can be exchanged for another."""
        for _ in range(strength + 1):
            moves = segment_moves(placement, self._runnable, most=MOVES, rng=self._rng)
            if not len(moves):
                return None
            placement = moves[self._rng.integers(len(moves))]
        return placement
