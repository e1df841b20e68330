"""`heuristic`: embedding layers on a CPU type, the rest on the best accelerator: what practitioners do by hand."""

from __future__ import annotations

import numpy as np

from heterps.schedule.methods.fixed import Fixed
from heterps.schedule.objective import Objective
from heterps.schedule.search import Settings


def heuristic(objective: Objective, settings: Settings) -> Fixed:
    """Tries each CPU type with each accelerator; the loop keeps the best pair.

    A cluster with one kind of device alone uses it for both. A layer that the chosen type cannot run goes to the type
    that runs it for the least money.
    """
    problem = objective.problem
    devices = [kind.device for kind in problem.cluster.types.values()]
    cpus = [t for t, device in enumerate(devices) if device == "cpu"] or list(range(problem.types))
    accelerators = [t for t, device in enumerate(devices) if device == "cuda"] or list(range(problem.types))
    sparse = np.array([layer.kind == "embedding" for layer in problem.profile.layers])
    cheapest = np.where(problem.runnable, (problem.serial + problem.parallel) * problem.price, np.inf).argmin(axis=1)
    rows = np.arange(problem.layers)
    placements = []
    for cpu in cpus:
        for accelerator in accelerators:
            wished = np.where(sparse, cpu, accelerator)
            placements.append(np.where(problem.runnable[rows, wished], wished, cheapest).astype(np.int32))
    return Fixed(problem, placements)
