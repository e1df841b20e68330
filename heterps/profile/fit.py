"""From measured times to the cost model's terms.

With k units a layer takes `t(k) = t·((1 - alpha) + alpha/k)`: the serial part stays, the parallel one is shared. Both
`t` and `alpha` are fitted to all measured k at once, by least squares of relative errors, which is linear in the
serial part `s = t·(1 - alpha)` and the parallel one `p = t·alpha`, both 0 or more. Real scaling is no such curve
(hardware threads share a core, cores share memory); as plans take few units or all of them, one unit and the most
measured count three times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls


@dataclass(frozen=True, slots=True)
class Scaling:
    """`seconds` on one unit, of which the share `alpha` is divided among several."""

    seconds: float
    alpha: float

    def at(self, units: float) -> float:
        """Seconds on so many units."""
        return self.seconds * (1 - self.alpha + self.alpha / units)


def fit_scaling(seconds: Mapping[int, float]) -> Scaling:
    """The scaling that fits seconds by number of units. With one number only, all is taken as parallel."""
    units = np.array(sorted(seconds), dtype=float)
    times = np.array([seconds[int(k)] for k in units])
    if len(units) == 1 or not np.all(times > 0):
        return Scaling(float(times[0] * units[0]), 1.0)
    weights = np.ones(len(units))
    weights[[0, -1]] = 3.0
    rows = np.stack([1 / times, 1 / units / times], axis=1)
    serial, parallel = nnls(rows * weights[:, None], weights)[0]
    whole = float(serial + parallel)
    return Scaling(whole, float(parallel) / whole if whole else 1.0)


@dataclass(frozen=True, slots=True)
class Overhead:
    """`fixed_s` for every micro-batch, however small, and `per_sample_s`."""

    fixed_s: float
    per_sample_s: float


def fit_overhead(small: int, small_s: float, large: int, large_s: float) -> Overhead:
    """The straight line through two batch sizes; neither part is below 0."""
    slope = min(max((large_s - small_s) / (large - small), 0.0), large_s / large) if large > small else large_s / large
    return Overhead(max(0.0, large_s - slope * large), slope)
