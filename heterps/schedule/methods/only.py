"""`only:TYPE`: everything on one type."""

from __future__ import annotations

import numpy as np

from heterps.schedule.methods.fixed import Fixed
from heterps.schedule.objective import Objective
from heterps.schedule.search import Settings


def only(objective: Objective, settings: Settings, *, name: str) -> Fixed:
    """Every layer on the named type; `InvalidInput` if the cluster has no such type."""
    problem = objective.problem
    return Fixed(problem, [np.full(problem.layers, problem.type_index(name), dtype=np.int32)])
