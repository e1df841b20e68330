"""Lower bounds on an interval of throughputs: the step that `exact` branches on.

At a throughput the fewest units of every stage follow in closed form, so the cheapest placement is a shortest path.
Limits couple the stages. They are first priced (Lagrange multipliers, raised by subgradient steps), which keeps the
shortest path and still bounds from below; what gap remains is closed by a best-first search over partial paths that
tracks the uses of exactly those types whose limits the cheapest path broke, or, where that grows too large, by an
integer program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from heterps._native import Graph, Multipliers, Path
from heterps.schedule.methods.program import solve
from heterps.schedule.problem import Floats, Placements, Problem

FIRST_ASCENTS, ASCENTS = 300, 50
"""Subgradient steps of an interval whose limits have no prices yet, and of one that starts from its parent's."""

SERVER_SHARES = (1.0, 0.7, 0.3, 0.0)
"""Ways to charge the server that are tried: all by the work, or some for its fewest whole units."""

FRESH, STALL, SHRINK = 0.7, 3, 0.5
"""Weight of the newest slope in the running average; steps without a better bound after which the step length shrinks,
and by how much."""

SPLIT_SHARE = 0.2
"""An interval whose width makes up this share of the gap between bound and cutoff is split before labels are searched:
that raises its bound for less."""

LABELS = 16_000
"""Partial paths a label search may hold, a hundredth of a second's work. Past it the bound is what was proved until
then, and the integer program takes over."""

PROGRAM_SECONDS = 2.0
"""What one integer program may take; they take a tenth of it."""


@dataclass(frozen=True, eq=False)
class Interval:
    """Plans of at most `stages` stages (0: any number) with a steady throughput in [low, high]."""

    low: float
    high: float
    stages: int
    graph: Graph
    prices: Floats
    """Multiplier of each type's limit (dollars an hour a unit for each unit of throughput), then that of the money."""
    tracked: frozenset[int] = frozenset()
    """Types, or the number of types for the money, whose use the label search tracks."""
    money: float = 1.0
    """What money weighs: 1, or 0 where only the limits are at stake."""
    server_share: float = 1.0
    """Share of the server's price that is charged by the work; the rest is charged for its fewest whole units."""

    @property
    def _multipliers(self) -> Multipliers:
        return Multipliers(
            type=self.prices[:-1].tolist(),
            rate=float(self.prices[-1]),
            money=self.money,
            server_share=self.server_share,
        )

    def relax(self) -> Path:
        """The cheapest path with the limits priced in."""
        return self.graph.relax(self.low, self.high, multipliers=self._multipliers, max_stages=self.stages)

    def search(self, cutoff: float) -> Path:
        """The cheapest path that keeps the tracked limits."""
        types = len(self.prices) - 1
        return self.graph.search(
            self.low, self.high, multipliers=self._multipliers, max_stages=self.stages,
            tracked=sorted(self.tracked - {types}), track_rate=types in self.tracked, cutoff=cutoff,
            max_labels=LABELS,
        )  # fmt: skip

    def narrowed(self, cutoff: float) -> Interval:
        """The same interval without the stages that no plan below the cutoff uses."""
        if not math.isfinite(cutoff):
            return self
        return replace(self, graph=self.graph.narrow(self.low, self.high, multipliers=self._multipliers, cutoff=cutoff))


@dataclass(frozen=True, eq=False)
class Bounded:
    """An interval with its bound, and the path that was cheapest last."""

    interval: Interval
    bound: float
    path: Path
    fits: bool
    """True if the path keeps every limit."""
    reached: float
    """Throughput of the cheapest path that keeps every limit, which costs the same up to there; 0 if there is none."""
    solved: bool = False
    """True if an integer program found that path."""


def excess(problem: Problem, path: Path) -> Floats:
    """How far a path's uses exceed each type's limit and the money, as shares; at most 0 where they do not."""
    uses = np.array([*path.used, path.rate])
    limits = np.array([*problem.limit, problem.max_rate * (1 + 1e-9)])
    return np.where(np.isinf(limits), -1.0, uses / limits - 1.0)


def tighten(problem: Problem, interval: Interval, cutoff: Callable[[], float]) -> Iterator[Placements | Bounded]:
    """Yields placements worth scoring, and last the interval's bound, raised as far as the cutoff asks.

    The bound and the cutoff are dollars an hour for each unit of steady throughput; the cutoff may fall as placements
    are scored.
    """
    path = interval.relax()
    if not math.isfinite(path.bound):
        yield Bounded(interval, math.inf, path, False, 0.0)
        return
    if problem.server_type >= 0 and math.isfinite(interval.high):
        trials = [replace(interval, server_share=share) for share in SERVER_SHARES]
        interval, path = max(((trial, trial.relax()) for trial in trials), key=lambda pair: pair[1].bound)
    yield path.placement
    bounded = _bounded(problem, interval, path)
    if not bounded.fits and bounded.bound < cutoff():
        for step in _raise_prices(problem, bounded, cutoff):
            if isinstance(step, Bounded):
                bounded = step
            else:
                yield step
    if (
        bounded.bound < cutoff()
        and (not bounded.fits or bounded.path.own >= cutoff())
        and not _splits_well(bounded, cutoff())
    ):
        for step in _search_labels(problem, bounded, cutoff):
            if isinstance(step, Bounded):
                bounded = step
            else:
                yield step
    yield bounded


def _bounded(problem: Problem, interval: Interval, path: Path) -> Bounded:
    fits = bool(excess(problem, path).max() <= 0)
    return Bounded(interval, path.bound, path, fits, path.reached if fits else 0.0)


def _splits_well(bounded: Bounded, cutoff: float) -> bool:
    """True if the gap to the cutoff comes from the interval's width rather than from limits: see `SPLIT_SHARE`."""
    path, high = bounded.path, bounded.interval.high
    if math.isinf(cutoff) or (math.isinf(high) and not bounded.fits):
        return False
    width = path.rate / min(path.reached, high) / path.own - 1
    return width > SPLIT_SHARE * (cutoff / bounded.bound - 1)


def _raise_prices(problem: Problem, start: Bounded, cutoff: Callable[[], float]) -> Iterator[Placements | Bounded]:
    """Subgradient ascent on the prices of the limits, along a running average of the slopes; keeps the best bound."""
    limits = np.array([*problem.limit, problem.max_rate])
    best, path, prices = start, start.path, start.interval.prices
    direction = np.zeros_like(prices)
    scale, stalled = 1.0, 0
    for _ in range(ASCENTS if prices.any() else FIRST_ASCENTS):
        slope = excess(problem, path)
        direction = FRESH * slope + (1 - FRESH) * direction
        direction = np.where((prices <= 0) & (direction < 0) | np.isinf(limits), 0.0, direction)
        if best.bound >= cutoff() or not direction.any():
            break
        target = cutoff() if math.isfinite(cutoff()) else 1.3 * max(best.bound, path.bound)
        step = scale * max(target - path.bound, 1e-4 * target) / float(direction @ direction)
        # The slope is in multiples of the limit, so the price of one unit moves by step / limit.
        prices = np.where(np.isinf(limits), 0.0, np.maximum(0.0, prices + step * direction / limits))
        interval = replace(start.interval, prices=prices)
        path = interval.relax()
        yield path.placement
        if path.bound > best.bound:
            best = _bounded(problem, interval, path)
            stalled = 0
        elif (stalled := stalled + 1) >= STALL:
            scale, stalled = SHRINK * scale, 0
            path, prices = best.path, best.interval.prices
            direction = np.zeros_like(prices)
    yield best


def _search_labels(problem: Problem, start: Bounded, cutoff: Callable[[], float]) -> Iterator[Placements | Bounded]:
    """Label searches that track ever more limits, until the cheapest path keeps all; past `LABELS`, a program."""
    interval, bound, path = start.interval.narrowed(cutoff()), start.bound, start.path
    fits, reached, solved = start.fits, start.reached, False
    while bound < cutoff():
        broken = set(np.flatnonzero(excess(problem, path) > 0).tolist())
        interval = replace(interval, tracked=interval.tracked | broken)
        found = interval.search(cutoff())
        bound = max(bound, found.bound)
        if not found.complete and math.isfinite(cutoff()) and math.isfinite(interval.high):
            answer = solve(
                problem, interval.graph, interval.low, interval.high, max_stages=interval.stages, cutoff=cutoff(),
                seconds=PROGRAM_SECONDS,
            )  # fmt: skip
            bound, reached, solved = max(bound, answer.bound), answer.reached, answer.placement is not None
            if answer.placement is not None:
                yield answer.placement
            break
        if not len(found.placement):
            break
        path = found
        yield path.placement
        fits = excess(problem, path).max() <= 0
        if fits:
            reached = path.reached
            break
    yield Bounded(interval, bound, path, fits, reached, solved)
