"""Lower bounds on an interval of throughputs: the step that `exact` branches on.

At a throughput the fewest units of every stage follow in closed form, so the cheapest placement is a shortest path.
Limits couple the stages. They are first priced (Lagrange multipliers, raised by subgradient steps), which keeps the
shortest path and still bounds from below; what gap remains is closed by branching on which layers are on which types,
each part with prices of its own, or, where that takes too long and the chain is short, by an integer program.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from heterps._native import Graph, Multipliers, Path
from heterps.schedule.methods.paths import Paths
from heterps.schedule.methods.program import GAP, Solved, solve
from heterps.schedule.problem import Floats, Placements, Problem

FIRST_ASCENTS, ASCENTS = 300, 50
"""Subgradient steps of an interval whose limits have no prices yet, and of one that starts from its parent's."""

SERVER_SHARES = (1.0, 0.7, 0.3, 0.0)
"""Ways to charge the server that are tried: all by the work, or some for its fewest whole units."""

FRESH, STALL, SHRINK = 0.7, 3, 0.5
"""Weight of the newest slope in the running average; steps without a better bound after which the step length shrinks,
and by how much."""

LEAST_SCALE = 1e-3
"""Step length at which ascents end: prices no longer move."""

NARROW_EVERY = 20
"""Ascents after which the stages that no plan below the cutoff uses are dropped."""

SPLIT_SHARE = 0.2
"""An interval whose width makes up this share of the gap between bound and cutoff is split before it is branched on:
that raises its bound for less."""

PROBE = 2_000_000
"""Stages that the search for a plan at an interval's low end may look at: 0.01 s of work."""

EFFORT, MORE_EFFORT, MORE_SHARE = 10_000_000, 100_000_000, 0.1
"""Stages that one branching may look at: 0.05 s of work. Past it the bound is what was proved until then; more are
looked at in an interval so narrow that its width makes up only this share of the gap that is left."""

PROGRAM_STAGES, PROGRAM_SECONDS = 600, 1.0
"""Where so few stages are left, an integer program takes over from branching, and for how long at most. Its cutting
planes close in a hundredth of a second to one what branching does not: many limits that are tight at once."""

WIDE = 0.1
"""Gap between bound and best plan at which a program looks for a better plan: branching finds none so far off."""

ROUGH_STAGES, ROUGH_GAP, ROUGH_GUESSES = 2000, 0.01, tuple(0.2 * 0.7**i for i in range(12))
"""Stages that such a program takes at most, the gap at which it ends, and how far above the bound the paths of its
stages may cost, the first that leaves so few."""

PRICED_STAGES = 20_000
"""Stages over which the best prices are worth a linear program: 0.1 s at 14,000."""


@dataclass(frozen=True, eq=False)
class Interval:
    """Plans of at most `stages` stages (0: any number) with a steady throughput in [low, high]."""

    low: float
    high: float
    stages: int
    graph: Graph
    prices: Floats
    """Multiplier of each type's limit (dollars an hour a unit for each unit of throughput), then that of the money."""
    money: float = 1.0
    """What money weighs: 1, or 0 where only the limits are at stake."""
    server_share: float = 1.0
    """Share of the server's price that is charged by the work; the rest is charged for its fewest whole units."""
    hard: bool = False
    """True if branching was not enough for an interval that this one is a part of: little of it is tried here."""
    searched: bool = False
    """True if a program has looked for a good plan in an interval that this one is a part of."""

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

    def branch(self, cutoff: float, effort: int) -> Path:
        """The cheapest path that keeps all limits, if it costs less than the cutoff; gives up past the effort."""
        return self.graph.branch(
            self.low, self.high, multipliers=self._multipliers, max_stages=self.stages, cutoff=cutoff, max_effort=effort
        )

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
    """True if branching or an integer program found that path."""


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
    if bounded.bound < cutoff() and (not bounded.fits or bounded.path.own >= cutoff()):
        if _splits_well(bounded, cutoff()):
            bounded, placement = _probe(problem, bounded, cutoff())
        else:
            bounded, placement = _branch(problem, bounded, cutoff())
        if placement is not None:
            yield placement
    yield bounded


def _bounded(problem: Problem, interval: Interval, path: Path) -> Bounded:
    fits = bool(excess(problem, path).max() <= 0)
    return Bounded(interval, path.bound, path, fits, path.reached if fits else 0.0)


def _splits_well(bounded: Bounded, cutoff: float) -> bool:
    """True if the gap to the cutoff comes from the interval's width rather than from limits: see `SPLIT_SHARE`."""
    path, high = bounded.path, bounded.interval.high
    if math.isinf(cutoff):
        return False
    if math.isinf(high):
        return True
    width = path.rate / min(path.reached, high) / path.own - 1
    return width > SPLIT_SHARE * (cutoff / bounded.bound - 1)


def _raise_prices(problem: Problem, start: Bounded, cutoff: Callable[[], float]) -> Iterator[Placements | Bounded]:
    """Subgradient ascent on the prices of the limits, along a running average of the slopes; keeps the best bound."""
    limits = np.array([*problem.limit, problem.max_rate])
    best, path, prices, graph = start, start.path, start.interval.prices, start.interval.graph
    direction = np.zeros_like(prices)
    scale, stalled = 1.0, 0
    for step in range(1, (ASCENTS if prices.any() else FIRST_ASCENTS) + 1):
        slope = excess(problem, path)
        direction = FRESH * slope + (1 - FRESH) * direction
        direction = np.where((prices <= 0) & (direction < 0) | np.isinf(limits), 0.0, direction)
        if best.bound >= cutoff() or not direction.any() or scale < LEAST_SCALE:
            break
        target = cutoff() if math.isfinite(cutoff()) else 1.3 * max(best.bound, path.bound)
        stride = scale * max(target - path.bound, 1e-4 * target) / float(direction @ direction)
        # The slope is in multiples of the limit, so the price of one unit moves by stride / limit.
        prices = np.where(np.isinf(limits), 0.0, np.maximum(0.0, prices + stride * direction / limits))
        if step % NARROW_EVERY == 0:
            graph = best.interval.narrowed(cutoff()).graph
        interval = replace(start.interval, prices=prices, graph=graph)
        path = interval.relax()
        if not math.isfinite(path.bound):
            best = replace(best, interval=interval, bound=cutoff())
            break
        yield path.placement
        if path.bound > best.bound:
            best = _bounded(problem, interval, path)
            stalled = 0
        elif (stalled := stalled + 1) >= STALL:
            scale, stalled = SHRINK * scale, 0
            path, prices = best.path, best.interval.prices
            direction = np.zeros_like(prices)
    yield best


def _probe(problem: Problem, start: Bounded, cutoff: float) -> tuple[Bounded, Placements | None]:
    """A path below the cutoff that keeps all limits at the low end, where no width blurs what is cheap, if found.

    Where limits bind, cheapest paths break them; a good plan known early spares most of the later intervals.
    """
    interval = start.interval
    point = replace(interval, high=interval.low).narrowed(cutoff)
    found = point.branch(cutoff, PROBE)
    if len(found.placement):
        return start, found.placement
    if interval.searched or found.complete or found.bound > (1 - WIDE) * cutoff or point.graph.size > PRICED_STAGES:
        return start, None
    return replace(start, interval=replace(interval, searched=True)), _rough(problem, point, cutoff)


def _rough(problem: Problem, point: Interval, cutoff: float) -> Placements | None:
    """A good path, if a program finds one among the stages of the cheapest paths at the best prices."""
    prices = Paths(problem, point.graph, point.low, point.high).best_prices(1 / cutoff)
    if prices is None:
        return None
    priced = replace(point, prices=prices)
    bound = priced.relax().bound
    for guess in ROUGH_GUESSES:
        few = priced.narrowed(bound * (1 + guess))
        if bound * (1 + guess) < cutoff and few.graph.size <= ROUGH_STAGES:
            return _solve(problem, few, bound * (1 + guess), gap=ROUGH_GAP).placement
    return None


def _branch(problem: Problem, start: Bounded, cutoff: float) -> tuple[Bounded, Placements | None]:
    """The interval with its bound raised by branching, or by a program; and the cheapest path that keeps all limits."""
    interval = start.interval.narrowed(cutoff)
    short = interval.graph.size <= PROGRAM_STAGES and math.isfinite(cutoff) and math.isfinite(interval.high)
    found = interval.branch(cutoff, PROBE if short and interval.hard else EFFORT)
    bound = max(start.bound, found.bound)
    if short and not found.complete:
        interval = replace(interval, hard=True)
        answer = _solve(problem, interval, cutoff, gap=GAP)
        bound = max(bound, answer.bound)
        if answer.placement is not None:
            solved = replace(start, interval=interval, bound=bound, reached=answer.reached, solved=True)
            return solved, answer.placement
    elif not found.complete and interval.high / interval.low - 1 < MORE_SHARE * (1 - bound / cutoff):
        found = interval.branch(cutoff, MORE_EFFORT)
        bound = max(bound, found.bound)
    if not len(found.placement):
        return replace(start, interval=interval, bound=bound), None
    return Bounded(interval, bound, found, True, found.reached, solved=True), found.placement


def _solve(problem: Problem, interval: Interval, cutoff: float, *, gap: float) -> Solved:
    return solve(
        problem, interval.graph, interval.low, interval.high, max_stages=interval.stages, cutoff=cutoff, gap=gap,
        seconds=PROGRAM_SECONDS,
    )  # fmt: skip
