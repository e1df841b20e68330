r"""Whole units for a placement, by simulation.

A target throughput t asks stage s for the fewest units k with S + P/k · J_k ≤ 1/t and DS + DP/k ≤ 1/t, where J_k is
what stragglers stretch computing by, on average about the factor's quantile 0.56^(1/k); the server for p t J units.
Three targets are tried: the throughput at which the closed form's optimum stands; what that reaches in simulation, if
it is much less (units that a shared link keeps waiting are not worth their money); and the throughput asked for. One
that comes out too slow for the goal is raised by what is missing. From the cheapest, units are then taken from single
stages and the server, and given to the busiest, as long as that is cheaper a sample and fast enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from heterps.schedule.problem import Floats, Problem
from heterps.schedule.simulation.conditions import Conditions
from heterps.schedule.simulation.failures import expected_share
from heterps.schedule.simulation.loads import Measured, Work, measure, work_of
from heterps.units import SECONDS_PER_HOUR

MEAN_QUANTILE = math.exp(-0.5772156649)
"""Where the mean of the largest of many draws lies among its quantiles (Gumbel's distribution, Euler's constant)."""

RAISES = 3
PASSES = 8
"""Targets raised, and rounds of changing single stages' units, at the most."""

SLACK = 1e-9


@dataclass(frozen=True, slots=True)
class Units:
    """Units of a placement and what they give in simulation: samples a second, failures included, and dollars a sample.

    `shortfall` is 0 if the goal is met, else how far it is missed, as a share.
    """

    units: tuple[int, ...]
    server_units: int
    throughput: float
    usd_per_sample: float
    shortfall: float
    busy: tuple[float, ...]

    @property
    def rank(self) -> tuple[float, float]:
        """Goals first, money second."""
        return self.shortfall, self.usd_per_sample


class Provisioner:
    """Chooses units for one placement. `spend` takes one simulation, and says whether there was one left."""

    def __init__(
        self, problem: Problem, placement: NDArray[np.int32], conditions: Conditions, spend: Callable[[], bool]
    ) -> None:
        self._problem, self._conditions, self._spend = problem, conditions, spend
        self._work: Work = work_of(problem, placement)
        self._price = problem.price[self._work.types]
        self._least = _least_units(problem, self._work)
        self._floor = problem.goal.throughput_floor

    def choose(self, closed_units: Sequence[int], closed_server: int, closed_throughput: float) -> Units | None:
        """The first choice, before single stages are looked at; None if no simulation is left.

        The closed form's units are the last resort, where limits leave no room for stragglers.
        """
        fill = self._problem.goal.fill(self._work.stages)  # targets are of a pipeline that is always full
        found = self._reach(closed_throughput / fill)
        if found is not None and self._floor < found.throughput < 0.95 * closed_throughput:
            found = _better(found, self._reach(found.throughput / fill))
        if 0 < self._floor < 0.98 * closed_throughput:
            found = _better(found, self._reach(self._floor / fill))
        if found is None or found.shortfall > 0:
            found = _better(found, self._simulated(closed_units, closed_server))
        return found

    def refine(self, found: Units) -> Units:
        """Changes single stages' units as long as it helps: fewer, the idlest stage first, and more for the busiest."""
        for turn in range(PASSES):
            before, finest = found, True
            order = np.argsort(found.busy, kind="stable")
            for s, sign in [*((s, -1) for s in order), (order[-1], 1)]:
                step = max(1, [*found.units, found.server_units][s] // (8 << turn))
                finest &= step == 1
                if (changed := self._changed(found, int(s), sign * step)) is not None:
                    found = _better(found, self._simulated(*changed)) or found
            if found is before and finest:
                break
        return found

    def _reach(self, target: float) -> Units | None:
        """Units for the target, raised until the simulation reaches the goal or a constraint forbids it."""
        found: Units | None = None
        for _ in range(1 + RAISES):
            asked = self._asked(target)
            tried = asked and self._simulated(*asked)
            if not tried:
                break
            found = _better(found, tried)
            if tried.shortfall == 0:
                break
            target *= 1.002 * max(1.0, self._floor / max(tried.throughput, 0.25 * self._floor))
        return found

    def _asked(self, throughput: float) -> tuple[tuple[int, ...], int] | None:
        """The fewest units for a throughput, stragglers reckoned with; None if a constraint forbids them."""
        work, seconds = self._work, 1 / throughput
        room, sync_room = seconds - work.serial, seconds - work.sync_serial
        if (room <= 0).any() or (sync_room <= 0).any():
            return None
        units = self._least
        for _ in range(3):  # more units straggle more: a few rounds settle it
            needed = np.maximum(work.parallel * self._straggle(units) / room, work.sync_parallel / sync_room)
            units = np.maximum(self._least, np.ceil(needed * (1 - SLACK)))
        server = 0.0
        if (total := float(work.server.sum())) > 0:
            server = max(1.0, math.ceil(throughput * total * (1 - SLACK)))
            server = math.ceil(server * float(self._straggle(np.array([server]))[0]) * (1 - SLACK))
        if not np.isfinite(units).all() or not self._allowed(units, server):
            return None
        return tuple(int(k) for k in units), int(server)

    def _straggle(self, units: Floats) -> Floats:
        sigma = self._conditions.jitter
        if sigma == 0:
            return np.ones(len(units))
        tail = -np.expm1(math.log(MEAN_QUANTILE) / units)
        return np.maximum(1.0, np.exp(sigma * (-np.asarray(ndtri(tail)) - 0.5 * sigma)))

    def _changed(self, found: Units, stage: int, more: int) -> tuple[tuple[int, ...], int] | None:
        """More (or fewer) units for a stage, or for the server behind the last one; None if a constraint forbids it."""
        counts = np.array([*found.units, found.server_units])
        counts[stage] += more
        is_server = stage == len(found.units)
        least = 1.0 if is_server else self._least[stage]
        if counts[stage] < least or (is_server and found.server_units == 0):
            return None
        if not self._allowed(counts[:-1].astype(float), float(counts[-1])):
            return None
        return tuple(int(k) for k in counts[:-1]), int(counts[-1])

    def _allowed(self, units: Floats, server: float) -> bool:
        problem = self._problem
        used = np.bincount(self._work.types, weights=units, minlength=problem.types)
        if problem.server_type >= 0:
            used[problem.server_type] += server
        within = bool((used <= problem.limit).all())
        return within and float(used @ problem.price) <= problem.max_rate * (1 + SLACK)

    def _simulated(self, units: Sequence[int], server: int) -> Units | None:
        if not self._spend():
            return None
        got = measure(self._problem, self._work, units, server, self._conditions)
        throughput = got.throughput * expected_share(self._conditions, sum(units) + server)
        rate = float(np.dot(self._price, units))
        if self._problem.server_type >= 0:
            rate += float(self._problem.price[self._problem.server_type]) * server
        cost = rate / SECONDS_PER_HOUR / throughput if throughput > 0 else math.inf
        short = max(0.0, self._floor * (1 - SLACK) / throughput - 1) if throughput > 0 else 1e9
        return Units(tuple(units), server, throughput, cost, short, _busy(got))


def _busy(got: Measured) -> tuple[float, ...]:
    """How busy each stage is, by computing or by its link, and the server last."""
    return (*(max(pair) for pair in zip(got.compute, got.link, strict=True)), got.server)


def _better(one: Units | None, other: Units | None) -> Units | None:
    if one is None or other is None:
        return one or other
    return other if other.rank < one.rank else one


def _least_units(problem: Problem, work: Work) -> Floats:
    """Units that memory asks for; infinite if none are enough."""
    memory = problem.memory[work.types]
    room = memory - np.add.reduceat(problem.replicated, work.firsts)
    sharded = np.add.reduceat(problem.sharded, work.firsts)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(sharded > 0, np.where(room > 0, np.ceil(sharded / room * (1 - SLACK)), math.inf), 1.0)
    needed = np.where(room < -SLACK * memory, math.inf, needed)
    return np.maximum(1.0, np.where(np.isinf(memory), 1.0, needed))
