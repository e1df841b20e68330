"""The cheapest path under all limits, as an integer program (HiGHS).

A 0/1 variable for each stage that is left in a narrowed graph, flow through the cut positions, a knapsack for each
limit. Where many small limits are tight at once, its cutting planes close in a hundredth of a second what takes
branching long.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from heterps._native import Graph
from heterps.schedule.problem import Floats, Problem

SCALE = 1e4
"""What the cutoff is scaled to: HiGHS' absolute tolerances (1e-7 to 1e-6) are then far below the gap to prove."""

SLACK = 1e-9
"""As in the native core: units are rounded up only past this."""

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
    problem: Problem, graph: Graph, low: float, high: float, *, max_stages: int, cutoff: float, seconds: float
) -> Solved:
    """The cheapest path for throughputs in [low, high] that keeps every limit.

    Bound and cutoff are dollars an hour for each unit of throughput. A cheapest path of the cutoff or more is not
    looked for.
    """
    stages = graph.stages(low, high)
    if not len(stages):
        return Solved(math.inf)
    first, last, kind = (stages[:, i].astype(np.intp) for i in range(3))
    units, spent, took, server = stages[:, 3], stages[:, 4], stages[:, 5], stages[:, 6]
    program = _Program(len(stages), served=problem.server_type >= 0)
    price = problem.price
    server_price = float(price[problem.server_type]) if program.served else 0.0

    positions, once = problem.layers + 1, np.ones(len(stages))
    through = np.zeros(positions)
    through[0], through[-1] = 1.0, -1.0
    program.add(first, once, through, through, also=(last, -once))
    # Two neighbouring stages of one type would be one stage, which is a variable of its own.
    begins, ends = first * problem.types + kind, last * problem.types + kind
    program.add(begins, once, -np.inf, np.ones(positions * problem.types), also=(ends, once))
    program.add(kind, units, -np.inf, problem.limit, whole=np.arange(problem.types) == problem.server_type)
    program.add(None, price[kind] * units, -np.inf, problem.max_rate * (1 + 1e-9), whole=server_price)
    program.add(None, once, -np.inf, max_stages or np.inf)
    if program.served:
        program.add(None, low * server, -np.inf, SLACK, whole=-1.0)

    cost = np.append(price[kind] * spent, [server_price / high] if program.served else [])
    unit = SCALE / cutoff
    # What costs more is not looked for: where nothing costs less, that is often plain before any branching.
    program.add(None, cost[: len(stages)] * unit, -np.inf, SCALE * (1 + SLACK), whole=cost[-1] * unit)
    bound = 0.0
    for _ in range(TRIES):
        result = program.minimise(cost * unit, seconds)
        if result.status == INFEASIBLE:
            return Solved(cutoff)
        bound = max(bound, (result.mip_dual_bound or 0.0) / unit * (1 - SAFETY))
        if result.x is None or bound >= cutoff:
            break
        chosen = np.flatnonzero(result.x[: len(stages)] > 0.5)
        placement = np.zeros(problem.layers, dtype=np.int32)
        for e in chosen:
            placement[first[e] : last[e]] = kind[e]
        work, whole = float(server[chosen].sum()), round(result.x[-1])
        if program.served and work * low > whole * (1 + SLACK):
            # Within HiGHS' tolerance, but past ours: layers that cause so much work need one more unit of the server.
            causes = (np.arange(problem.types) == placement[:, None]) & (problem.server > 0)
            before = np.vstack([np.zeros(problem.types), causes.cumsum(axis=0)])
            program.add(None, before[last, kind] - before[first, kind], -np.inf, causes.sum() - 1.0 - whole, whole=-1.0)
            continue
        waits = work / whole if work > 0 else 0.0
        return Solved(bound, placement, 1.0 / max(float(took[chosen].max()), waits))
    return Solved(bound)


class _Program:
    """Constraints over a 0/1 variable for each stage and, if served, the server's whole units as the last variable."""

    def __init__(self, stages: int, *, served: bool) -> None:
        self.stages, self.served = stages, served
        self._constraints: list[LinearConstraint] = []

    def add(
        self,
        row: NDArray[np.intp] | None,
        values: Floats,
        lower: Floats | float,
        upper: Floats | float,
        *,
        also: tuple[NDArray[np.intp], Floats] | None = None,
        whole: Floats | float = 0.0,
    ) -> None:
        """Adds lower ≤ rows·x ≤ upper: stage e has `values[e]` in row `row[e]`, and again as `also` says."""
        upper = np.atleast_1d(upper)
        lower = np.broadcast_to(lower, upper.shape)
        binds = np.flatnonzero(np.isfinite(lower) | np.isfinite(upper))
        if not len(binds):
            return
        each = np.arange(self.stages)
        rows = np.zeros(self.stages, np.intp) if row is None else row
        columns = each
        if also is not None:
            rows, columns, values = np.append(rows, also[0]), np.append(each, each), np.append(values, also[1])
        if self.served:
            size = len(upper)
            rows, columns = np.append(rows, np.arange(size)), np.append(columns, np.full(size, self.stages))
            values = np.append(values, np.broadcast_to(whole, size))
        matrix = csr_array((values, (rows, columns)), shape=(len(upper), self.stages + self.served))
        self._constraints.append(LinearConstraint(matrix[binds], lower[binds], upper[binds]))

    def minimise(self, cost: Floats, seconds: float) -> Any:
        """SciPy's result of minimising cost·x."""
        upper = np.ones(len(cost))
        if self.served:
            upper[-1] = np.inf
        with _silent():
            return milp(
                cost, constraints=self._constraints, integrality=np.ones(len(cost)), bounds=Bounds(0.0, upper),
                options={"mip_rel_gap": 1e-7, "time_limit": seconds},
            )  # fmt: skip


@contextmanager
def _silent() -> Iterator[None]:
    """Drops what the process writes to its standard output: HiGHS prints now and then, even when told not to."""
    sys.stdout.flush()
    stdio = ctypes.CDLL(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        stdio.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
