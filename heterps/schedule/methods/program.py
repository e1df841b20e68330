"""The cheapest path under all limits, as an integer program (HiGHS).

Where many small limits are tight at once, its cutting planes close in a hundredth of a second what takes branching
long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps._native import Graph
from heterps.schedule.methods.paths import SLACK, Paths
from heterps.schedule.problem import Problem

SCALE = 1e4
"""What the cutoff is scaled to: HiGHS' absolute tolerances (1e-7 to 1e-6) are then far below the gap to prove."""

GAP = 1e-7
"""Relative gap at which a program ends, unless told otherwise."""

INFEASIBLE = 2
"""HiGHS' status of a program without a solution."""

TRIES = 4
"""Programs solved in a row, each without the path of the one before."""

SAFETY = 5e-9
"""Relative loss of the bound that covers what tolerances leave."""


@dataclass(frozen=True, eq=False)
class Solved:
    """Lower bound on the cost of every path, at most the cutoff (infinite: no path at all); the best path, if any."""

    bound: float
    placement: NDArray[np.int32] | None = None
    reached: float = 0.0
    """Throughput of the path with the units of the interval's low end."""


def solve(
    problem: Problem,
    graph: Graph,
    low: float,
    high: float,
    *,
    max_stages: int,
    cutoff: float,
    seconds: float,
    gap: float = GAP,
) -> Solved:
    """The cheapest path for throughputs in [low, high] that keeps every limit.

    Bound and cutoff are dollars an hour for each unit of throughput. A cheapest path of the cutoff or more is not
    looked for. Ends when the path found is proved to within `gap` of the cheapest, or after so many seconds.
    """
    paths = Paths(problem, graph, low, high, max_stages=max_stages)
    if not len(paths):
        return Solved(math.inf)
    first, last, kind, served = paths.first, paths.last, paths.kind, paths.served
    unit = SCALE / cutoff
    # What costs more is not looked for: where nothing costs less, that is often plain before any branching.
    cost = paths.cost * unit
    paths.add(None, cost[: len(paths)], -np.inf, SCALE * (1 + SLACK), whole=cost[-1])
    bound = 0.0
    for _ in range(TRIES):
        result = paths.cheapest(unit, seconds=seconds, gap=gap)
        if result.status == INFEASIBLE:
            return Solved(cutoff)
        bound = max(bound, (result.mip_dual_bound or 0.0) / unit * (1 - SAFETY))
        if result.x is None or bound >= cutoff:
            break
        chosen = np.flatnonzero(result.x[: len(paths)] > 0.5)
        placement = np.zeros(problem.layers, dtype=np.int32)
        for e in chosen:
            placement[first[e] : last[e]] = kind[e]
        work, whole = float(paths.work[chosen].sum()), round(result.x[-1])
        if served and work * low > whole * (1 + SLACK):
            # Within HiGHS' tolerance, but past ours: layers that cause so much work need one more unit of the server.
            causes = (np.arange(problem.types) == placement[:, None]) & (problem.server > 0)
            before = np.vstack([np.zeros(problem.types), causes.cumsum(axis=0)])
            paths.add(None, before[last, kind] - before[first, kind], -np.inf, causes.sum() - 1.0 - whole, whole=-1.0)
            continue
        waits = work / whole if work > 0 else 0.0
        return Solved(bound, placement, 1.0 / max(float(paths.seconds[chosen].max()), waits))
    return Solved(bound)
