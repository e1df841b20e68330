"""The loop every method goes through: propose placements, score them, feed the scores back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heterps.errors import InvalidInput
from heterps.schedule.objective import Objective, Scores
from heterps.schedule.problem import Placements


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a method may spend and what makes it repeatable. `rounds` and `trials` of None mean the method's default."""

    seed: int = 0
    rounds: int | None = None
    """Rounds of learning (`rl`, `rl-rnn`); 0 uses the pretrained policy as it is."""
    trials: int | None = None
    """Placements tried one by one (`bayesian`, `genetic`)."""
    seconds: float = 60.0
    """After so long `exact` stops with the bound it has, which only problems far beyond the benchmarks come near."""

    def __post_init__(self) -> None:
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or not 0 <= self.seed < 2**32:
            raise InvalidInput(f"seed is a whole number from 0 to 4294967295, not {self.seed!r}")


class Method(Protocol):
    """A search method. It proposes until it returns an empty batch."""

    @property
    def proved(self) -> float:
        """Lower bound on the objective's value, proved so far; 0 where the method proves nothing."""
        ...

    @property
    def cutoff(self) -> float:
        """Value above which scores need not be exact; infinite if the method learns from all of them."""
        ...

    def propose(self) -> Placements:
        """The next placements to score, of shape [count, layers]; empty to stop."""
        ...

    def feedback(self, placements: Placements, scores: Scores) -> None:
        """Takes the scores of what was proposed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a search stands."""

    evaluations: int
    best: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search found. `placement` is None and `value` infinite if nothing feasible was proposed."""

    placement: NDArray[np.int32] | None
    value: float
    proved: float
    evaluations: int
    seconds: float


def search(objective: Objective, method: Method, on_progress: Callable[[Progress], None] | None = None) -> Outcome:
    """Runs a method to its end and returns the best placement it proposed."""
    began = time.perf_counter()
    best: NDArray[np.int32] | None = None
    value, evaluations = np.inf, 0
    while len(batch := method.propose()):
        scores = objective.score(batch, cutoff=method.cutoff)
        method.feedback(batch, scores)
        evaluations += len(batch)
        first = int(np.argmin(scores.value))
        if scores.value[first] < value:
            value, best = float(scores.value[first]), batch[first].copy()
        if on_progress is not None:
            on_progress(Progress(evaluations=evaluations, best=value))
    seconds = time.perf_counter() - began
    return Outcome(
        placement=best, value=value, proved=min(method.proved, value), evaluations=evaluations, seconds=seconds
    )
