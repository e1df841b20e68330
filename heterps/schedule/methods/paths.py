"""Paths over the stages of a narrowed graph as linear constraints.

A 0/1 variable for each stage, flow through the cut positions, a knapsack for each limit and, if there is a server, its
whole units as the last variable. In fractions these are mixes of paths, which cost as much as the cheapest path at the
best prices of the limits: those are the duals. That takes longer than some ascents, and tells the stages that matter
from the others far better where several limits are tight at once.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csr_array, vstack

from heterps._native import Graph
from heterps.schedule.problem import Floats, Problem

SLACK = 1e-9
"""As in the native core: units are rounded up only past this."""


class Paths:
    """Constraints on the paths for throughputs in [low, high] with at most so many stages (0: any number)."""

    def __init__(self, problem: Problem, graph: Graph, low: float, high: float, *, max_stages: int = 0) -> None:
        stages = graph.stages(low, high)
        # Those that alone break a limit would spoil the bound in fractions.
        stages = stages[stages[:, 3] <= problem.limit[stages[:, 2].astype(np.intp)]]
        self.first, self.last, self.kind = (stages[:, i].astype(np.intp) for i in range(3))
        units, spent, self.seconds, self.work = stages[:, 3], stages[:, 4], stages[:, 5], stages[:, 6]
        self.served = problem.server_type >= 0
        self._problem = problem
        self._constraints: list[LinearConstraint] = []
        price, once = problem.price, np.ones(len(stages))
        server_price = float(price[problem.server_type]) if self.served else 0.0
        self.cost: Floats = np.append(price[self.kind] * spent, [server_price / high] if self.served else [])
        """Dollars an hour of each variable for each unit of throughput."""
        through = np.zeros(problem.layers + 1)
        through[0], through[-1] = 1.0, -1.0
        self.add(self.first, once, through, through, also=(self.last, -once))
        money = (np.full(len(stages), problem.types), price[self.kind] * units)
        whole = np.append(np.arange(problem.types) == problem.server_type, server_price)
        self._limits = np.append(problem.limit, problem.max_rate * (1 + SLACK))
        self.add(self.kind, units, -np.inf, self._limits, also=money, whole=whole)
        self._keep_apart()
        self.add(None, once, -np.inf, max_stages or np.inf)
        if self.served:
            self.add(None, low * self.work, -np.inf, SLACK, whole=-1.0)

    def __len__(self) -> int:
        return len(self.first)

    def _keep_apart(self) -> None:
        """Two neighbouring stages of one type would be one stage, which is a variable of its own.

        So, past the first position, no more begins on a type than ended there on the others.
        """
        types = np.arange(self._problem.types)
        others = np.array([types[types != t] for t in types], dtype=np.intp).reshape(len(types), -1)
        ends = self.last[:, None] * len(types) + others[self.kind]
        most = np.zeros((self._problem.layers + 1) * len(types))
        most[: len(types)] = np.inf
        begins = self.first * len(types) + self.kind
        self.add(begins, np.ones(len(self)), -np.inf, most, also=(ends, -np.ones(ends.shape)))

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
        """Adds lower ≤ rows·x ≤ upper: stage e has `values[e]` in row `row[e]`, and again as `also[...][e]` says."""
        upper = np.atleast_1d(upper)
        lower = np.broadcast_to(lower, upper.shape)
        binds = np.flatnonzero(np.isfinite(lower) | np.isfinite(upper))
        if not len(binds) or not len(self):
            return
        each = np.arange(len(self))
        rows = np.zeros(len(self), np.intp) if row is None else row
        columns = each
        if also is not None:
            rows, values = np.append(rows, also[0]), np.append(values, also[1])
            columns = np.append(each, np.repeat(each, also[0].size // len(self)))
        if self.served:
            size = len(upper)
            rows, columns = np.append(rows, np.arange(size)), np.append(columns, np.full(size, len(self)))
            values = np.append(values, np.broadcast_to(whole, size))
        matrix = csr_array((values, (rows, columns)), shape=(len(upper), len(self.cost)))
        self._constraints.append(LinearConstraint(matrix[binds], lower[binds], upper[binds]))

    def cheapest(self, unit: float, *, seconds: float, gap: float) -> Any:
        """SciPy's result of minimising the cost in such units: to within the gap, or for so long."""
        upper = np.ones(len(self.cost))
        upper[len(self) :] = np.inf
        with _silent():
            return milp(
                self.cost * unit, constraints=self._constraints, integrality=np.ones(len(upper)),
                bounds=Bounds(0.0, upper), options={"mip_rel_gap": gap, "time_limit": seconds},
            )  # fmt: skip

    def best_prices(self, unit: float) -> Floats | None:
        """Prices of a unit of each type and of the money, as `Interval.prices` has them; None if no path is allowed.

        The cost is minimised in such units. The server's units count in fractions.
        """
        if not len(self):
            return None
        flow, *rules = self._constraints
        # One position's flow follows from the others'.
        result = linprog(
            self.cost * unit, A_ub=vstack([rule.A for rule in rules]), b_ub=np.concatenate([r.ub for r in rules]),
            A_eq=flow.A[:-1], b_eq=flow.ub[:-1], method="highs-ds",
        )  # fmt: skip
        if result.status != 0:
            return None
        limited = np.isfinite(self._limits)
        prices = np.zeros(len(limited))
        prices[limited] = np.maximum(0.0, -result.ineqlin.marginals[: limited.sum()] / unit)
        return prices


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
