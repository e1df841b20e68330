"""What a search minimises. The closed form is one objective; a simulated or measured one fits the same interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from heterps.schedule.problem import Floats, Placements, Problem
from heterps.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of a batch of placements. `value` is what is minimised, infinite where the placement is infeasible;
    `violation` is then how far it is from feasible (a share of what it exceeds), else 0.
    """  # noqa: D205

    value: Floats
    violation: Floats


@dataclass(frozen=True, slots=True)
class Provisioning:
    """Whole units for a placement, and what they give."""

    units: tuple[int, ...]
    server_units: int
    throughput: float
    usd_per_sample: float


class Objective(Protocol):
    """Scores placements, each with the best units it can have."""

    problem: Problem
    closed_form: bool
    """True if the score is the cost model's, so that a bound proved on it holds."""

    def score(self, placements: Placements, *, cutoff: float = np.inf) -> Scores:
        """Scores an int32 array of shape [count, layers].

        A placement that cannot get below the cutoff may be given any value it can reach instead of its best.
        """
        ...

    def provision(self, placement: NDArray[np.int32]) -> Provisioning | None:
        """The units behind a score, or None if the placement is infeasible."""
        ...


class ClosedForm:
    """The cost model with exactly optimal units: dollars a sample, or seconds a sample for the fastest-plan goal."""

    closed_form = True

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    def score(self, placements: Placements, *, cutoff: float = np.inf) -> Scores:
        """Scores an int32 array of shape [count, layers]; see `Objective.score` for the cutoff."""
        cost, throughput, violation, _, _ = self._provision(placements, cutoff=cutoff * SECONDS_PER_HOUR)
        if self.problem.goal.fastest:
            with np.errstate(divide="ignore"):
                value = np.where(throughput > 0, 1.0 / throughput, np.inf)
        else:
            value = cost / SECONDS_PER_HOUR
        return Scores(value, violation)

    def provision(self, placement: NDArray[np.int32]) -> Provisioning | None:
        """The exactly optimal whole units, or None if no units make the placement feasible."""
        cost, throughput, violation, units, server = self._provision(placement[None, :])
        if violation[0] > 0 or not np.isfinite(throughput[0]):
            return None
        whole = tuple(int(k) for k in units[0] if k > 0)
        return Provisioning(whole, int(server[0]), float(throughput[0]), float(cost[0]) / SECONDS_PER_HOUR)

    def _provision(
        self, placements: Placements, *, cutoff: float = np.inf
    ) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        goal = self.problem.goal
        return self.problem.tables.provision(
            np.ascontiguousarray(placements, dtype=np.int32),
            min_throughput=goal.throughput_floor,
            max_cost=goal.max_usd_per_sample * SECONDS_PER_HOUR,
            fastest=goal.fastest,
            micro_batches=goal.micro_batches or 0,
            cutoff=cutoff,
        )
