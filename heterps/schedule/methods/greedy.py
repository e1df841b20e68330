"""`greedy`: layer by layer, the locally cheapest."""

from __future__ import annotations

import numpy as np

from heterps.schedule.methods.fixed import Fixed
from heterps.schedule.objective import Objective
from heterps.schedule.problem import Problem
from heterps.schedule.search import Settings


def greedy(objective: Objective, settings: Settings) -> Fixed:
    """Gives each layer the type on which it alone, with the cut towards the layer before it, costs least."""
    problem = objective.problem
    placement = np.zeros(problem.layers, dtype=np.int32)
    for layer in range(problem.layers):
        previous = placement[layer - 1] if layer else None
        placement[layer] = int(_layer_costs(problem, layer, previous).argmin())
    return Fixed(problem, [placement])


def _layer_costs(problem: Problem, layer: int, previous: int | None) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Dollars (up to a factor) of a layer's sample on each type, given the type before; infinite if it cannot run."""
    compute = problem.serial[layer] + problem.parallel[layer]
    sync = problem.sync_serial[layer] + problem.sync_parallel[layer]
    if previous is not None:
        sync = sync + np.where(np.arange(problem.types) == previous, 0.0, problem.cut[layer - 1])
    return np.where(problem.runnable[layer], problem.price * np.maximum(compute, sync), np.inf)
