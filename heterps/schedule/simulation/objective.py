"""The simulator as an objective: dollars a sample of placements, each with units chosen by simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heterps.errors import InvalidInput
from heterps.schedule.objective import ClosedForm, Provisioning, Scores
from heterps.schedule.problem import Placements, Problem
from heterps.schedule.simulation.conditions import Conditions
from heterps.schedule.simulation.units import Provisioner, Units

SEARCH_STEPS = 32
"""Steps simulated for a score. Every score meets the same luck, so few steps tell plans apart."""

SCREEN = 1.3
"""A placement whose closed-form cost is above the best simulated one by this factor is not simulated, and scored with
the closed form's cost. Chance and sharing only add to that; unbalanced stages drain faster, but not by so much."""

REFINE = 1.25
"""Placements within this factor of the best so far get their units refined stage by stage."""


class Simulated:
    """Scores by simulation, with the same random numbers for all placements, and at most `simulations` of them.

    `left` says how many remain; once none do, placements that were not simulated before count as infeasible. `fastest`
    is the highest throughput that was simulated. Values are
    dollars a sample with failures included, on average over long runs. The goal of the fastest plan within a budget is
    refused: it has no least throughput to choose units for.
    """

    closed_form = False

    def __init__(self, problem: Problem, conditions: Conditions, *, simulations: float = math.inf) -> None:
        if problem.goal.fastest:
            raise InvalidInput(
                "the simulated objective needs a throughput: in place of --budget-usd give --min-throughput, or "
                "--samples with --deadline-hours"
            )
        self.problem = problem
        self.conditions = replace(conditions, steps=min(conditions.steps, SEARCH_STEPS))
        self.simulations = 0
        self._most = simulations
        self._closed = ClosedForm(problem)
        self._known: dict[bytes, Units] = {}
        self._best = math.inf
        self.fastest = 0.0

    @property
    def left(self) -> float:
        """Simulations that may still be made."""
        return self._most - self.simulations

    def score(self, placements: Placements, *, cutoff: float = np.inf) -> Scores:
        """Scores an int32 array of shape [count, layers]; the closed form's cheapest are simulated first."""
        closed = self._closed.score(placements)
        value, violation = closed.value.copy(), closed.violation.copy()
        for i in np.argsort(closed.value, kind="stable"):
            if not math.isfinite(closed.value[i]):
                break
            if closed.value[i] > SCREEN * min(self._best, cutoff):
                continue
            found = self._find(placements[i])
            value[i] = found.usd_per_sample if found is not None and found.shortfall == 0 else math.inf
            violation[i] = 1.0 if found is None else found.shortfall
        return Scores(value, violation)

    def provision(self, placement: NDArray[np.int32]) -> Provisioning | None:
        """The units behind a score, or None if the placement is infeasible; simulates even if nothing is left."""
        most, self._most = self._most, math.inf
        found = self._find(np.asarray(placement, dtype=np.int32))
        self._most = most
        if found is None or found.shortfall > 0:
            return None
        return Provisioning(found.units, found.server_units, found.throughput, found.usd_per_sample)

    def _find(self, placement: NDArray[np.int32]) -> Units | None:
        key = placement.tobytes()
        if key in self._known:
            return self._known[key]
        start = self._closed.provision(placement)
        if start is None:
            return None
        provisioner = Provisioner(self.problem, placement, self.conditions, self._spend)
        found = provisioner.choose(start.units, start.server_units, start.throughput)
        if found is None:
            return None
        if found.usd_per_sample <= REFINE * self._best:
            found = provisioner.refine(found)
        self._known[key] = found
        self.fastest = max(self.fastest, found.throughput)
        if found.shortfall == 0:
            self._best = min(self._best, found.usd_per_sample)
        return found

    def _spend(self) -> bool:
        """Takes one simulation, if there is one left."""
        if self.left <= 0:
            return False
        self.simulations += 1
        return True
