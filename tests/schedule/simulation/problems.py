"""Problems and plans for the simulator's tests."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps.plan import Cluster, Profile
from heterps.schedule.goal import Goal
from heterps.schedule.problem import Problem


def chain(
    *stages: tuple[float, float],
    batch: int = 8,
    goal: Goal | None = None,
    bandwidth_gbps: float | None = None,
    output_bytes: float = 0.0,
    server: float = 0.0,
    limit: int | None = None,
) -> Problem:
    """One layer for each (compute_s, sync_s) of a batch on one unit; layer i runs on type t{i} alone, at $1 an hour."""
    layers = [
        {"name": f"layer{i}", "output_bytes": output_bytes,
         "costs": {f"t{i}": {"compute_s": compute, "sync_s": sync, "ps_s": server}}}
        for i, (compute, sync) in enumerate(stages)
    ]  # fmt: skip
    offer = {"device": "cpu", "price_per_hour": 1.0, "bandwidth_gbps": bandwidth_gbps, "limit": limit}
    types = {f"t{i}": {key: value for key, value in offer.items() if value is not None} for i in range(len(stages))}
    cluster: dict[str, object] = {"types": types}
    if server:
        cluster["parameter_server"] = "t0"
    profile = {"format": "heterps.profile/1", "batch_size": batch, "layers": layers}
    return Problem(Profile.from_dict(profile), Cluster.from_dict(cluster), goal or Goal(min_throughput=0.0))


def names(problem: Problem) -> tuple[str, ...]:
    return tuple(f"t{i}" for i in range(problem.layers))


def any_placement(rng: np.random.Generator, problem: Problem) -> NDArray[np.int32]:
    """Random types, with runs of layers on one type as plans have them."""
    kinds = [int(rng.choice(np.flatnonzero(row))) for row in problem.runnable]
    for layer in range(1, problem.layers):
        if rng.random() < 0.6 and problem.runnable[layer, kinds[layer - 1]]:
            kinds[layer] = kinds[layer - 1]
    return np.array(kinds, dtype=np.int32)
