"""Whether limits allow a throughput, and the highest one they allow.

A throughput fixes every stage's units, so it is within reach if some path over the stages keeps all limits. Weigh the
limits by shares that sum to one: if the path that uses least of this mixture uses more than all of it, no path keeps
every limit. The shares follow the limits that paths break (multiplicative weights); where no mixture decides, branching
does.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heterps.schedule.methods.bounding import Interval, excess
from heterps.schedule.problem import Problem

ROUNDS = 60
"""Mixtures tried before branching."""

EFFORT = 100_000_000
"""Stages that branching may look at where no mixture decides: half a second's work."""

CLEAR = 1e-7
"""How far a mixture must be exceeded to count: well above rounding."""


class Unproved(Exception):
    """The search gave up, so that neither a path nor its absence is proved."""


def within_reach(problem: Problem, interval: Interval) -> NDArray[np.int32] | None:
    """A placement that keeps every limit at the throughput `interval.low`, or None if there is provably none.

    Raises:
        Unproved: if the search gave up.
    """
    limits = np.array([*problem.limit, problem.max_rate])
    finite = np.isfinite(limits)
    shares = np.where(finite, 1.0 / max(1, int(finite.sum())), 0.0)
    best, most = interval, -math.inf
    for step in range(ROUNDS):
        trial = replace(interval, prices=np.where(finite, shares / limits, 0.0), money=0.0, high=math.inf)
        path = trial.relax()
        if not math.isfinite(path.bound) or path.bound > CLEAR:
            return None
        over = excess(problem, path)
        if over.max() <= 0:
            return path.placement
        if path.bound > most:
            most, best = path.bound, trial
        shares = np.where(finite, shares * np.exp(np.clip(over, -1, 3) / (1 + 0.1 * step)), 0.0)
        shares = np.maximum(shares / shares.sum(), np.where(finite, 1e-6, 0.0))
    path = best.branch(CLEAR, EFFORT)
    if not path.complete:
        raise Unproved
    return path.placement if len(path.placement) else None
