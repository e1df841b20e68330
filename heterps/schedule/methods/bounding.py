"""Lower bounds on an interval of throughputs: the step that `exact` branches on.

At a throughput the fewest units of every stage follow in closed form, so the cheapest placement is a shortest path.
Limits couple the stages. They are first priced (Lagrange multipliers, raised by subgradient steps), which keeps the
shortest path and still bounds from below; what gap remains is closed by a best-first search over partial paths that
tracks the uses of exactly those types whose limits the cheapest path broke.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from heterps._native import Graph, Path
from heterps.schedule.problem import Floats, Placements, Problem

ASCENTS = 12
"""Subgradient steps an interval; children start from their parent's multipliers, so few are needed."""

MAX_LABELS = 400_000
"""Partial paths one search may hold (some 40 MB); beyond it the interval is split further instead."""


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

    def relax(self) -> Path:
        """The cheapest path with the limits priced in."""
        return self.graph.relax(
            self.low, self.high, type_multipliers=self.prices[:-1].tolist(), rate_multiplier=float(self.prices[-1]),
            max_stages=self.stages,
        )  # fmt: skip

    def search(self, cutoff: float) -> Path:
        """The cheapest path that keeps the tracked limits."""
        types = len(self.prices) - 1
        return self.graph.search(
            self.low, self.high, type_multipliers=self.prices[:-1].tolist(), rate_multiplier=float(self.prices[-1]),
            max_stages=self.stages, tracked=sorted(self.tracked - {types}), track_rate=types in self.tracked,
            cutoff=cutoff, max_labels=MAX_LABELS,
        )  # fmt: skip

    def narrowed(self, cutoff: float) -> Interval:
        """The same interval without the stages that no plan below the cutoff uses."""
        if not math.isfinite(cutoff):
            return self
        graph = self.graph.narrow(
            self.low, self.high, type_multipliers=self.prices[:-1].tolist(), rate_multiplier=float(self.prices[-1]),
            cutoff=cutoff,
        )  # fmt: skip
        return replace(self, graph=graph)


@dataclass(frozen=True, eq=False)
class Bounded:
    """An interval with its bound, and the path that was cheapest last."""

    interval: Interval
    bound: float
    path: Path
    fits: bool
    """True if the path keeps every limit."""


def excess(problem: Problem, path: Path) -> Floats:
    """How far a path's uses exceed each type's limit and the money, as shares; at most 0 where they do not."""
    uses = np.array([*path.used, path.rate])
    limits = np.array([*problem.limit, problem.max_rate * (1 + 1e-9)])
    return np.where(np.isinf(limits), -1.0, uses / limits - 1.0)


def tighten(problem: Problem, interval: Interval, cutoff: float) -> Iterator[Placements | Bounded]:
    """Yields placements worth scoring, and last the interval's bound, raised as far as the cutoff asks.

    The cutoff and the bound are dollars an hour for each unit of steady throughput.
    """
    limits = np.array([*problem.limit, problem.max_rate])
    path = interval.relax()
    best = path.bound
    if not math.isfinite(best):
        yield Bounded(interval, math.inf, path, False)
        return
    yield path.placement
    over = excess(problem, path)
    if over.max() > 0:
        prices, scale = interval.prices, 1.0
        for _ in range(ASCENTS):
            if best >= cutoff or over.max() <= 0:
                break
            target = cutoff if math.isfinite(cutoff) else max(1.5 * path.bound, best)
            slope = np.where((over > 0) | (prices > 0), over, 0.0)
            step = scale * max(target - path.bound, 1e-6 * target) / float(slope @ slope)
            # `over` is a slope in multiples of the limit, so the price of one unit moves by step / limit.
            prices = np.where(np.isinf(limits), 0.0, np.maximum(0.0, prices + step * over / limits))
            trial = replace(interval, prices=prices)
            path = trial.relax()
            over = excess(problem, path)
            if path.bound > best:
                best, interval = path.bound, trial
            else:
                scale *= 0.6
            yield path.placement
        path = interval.relax()
    fits = excess(problem, path).max() <= 0
    while best < cutoff and (not fits or path.own >= cutoff):
        broken = set(np.flatnonzero(excess(problem, path) > 0).tolist())
        interval = replace(interval, tracked=interval.tracked | broken)
        path = interval.search(cutoff)
        best = max(best, path.bound)
        if not len(path.placement):
            yield Bounded(interval, best, interval.relax(), False)
            return
        yield path.placement
        fits = excess(problem, path).max() <= 0
    yield Bounded(interval, best, path, fits)
