"""Random planning problems: for pretraining the policy, for tests and for benchmarks.

They are meant to be wide, not typical: types that differ by two orders of magnitude in speed and price, layers that
suit one device or another, links and limits that bind or are absent, tables that do not fit, parameter servers.
"""

from __future__ import annotations

import math

import numpy as np

from heterps.plan import Cluster, Profile
from heterps.schedule.goal import Goal, Mode
from heterps.schedule.methods.exact import Exact
from heterps.schedule.objective import ClosedForm
from heterps.schedule.problem import Problem
from heterps.schedule.search import Outcome, Settings, search

Rng = np.random.Generator


def random_problem(rng: Rng, *, layers: int, types: int, max_limit: int = 500, sync: bool = False) -> Problem:
    """A feasible problem of so many layers and types; `max_limit` bounds the units of any type that has a limit."""
    profile, cluster = _profile_and_cluster(rng, layers, types, max_limit)
    micro_batches = int(rng.integers(1, 17)) if sync else None
    mode: Mode = "sync" if sync else "async"
    target = _comfortable(rng, profile, cluster)
    if rng.random() < 0.4 and math.isfinite(highest := _highest(profile, cluster)) and highest > 0:
        target = highest * float(rng.uniform(0.05, 0.9))
    for _ in range(60):
        problem = Problem(profile, cluster, Goal(min_throughput=target, mode=mode, micro_batches=micro_batches))
        if _solve(problem, seconds=1.0).placement is not None:
            return problem
        target *= 0.5
    return random_problem(rng, layers=layers, types=types, max_limit=max_limit, sync=sync)


def _solve(problem: Problem, *, seconds: float) -> Outcome:
    objective = ClosedForm(problem)
    return search(objective, Exact(objective, Settings(seconds=seconds)))


def _highest(profile: Profile, cluster: Cluster) -> float:
    """About the highest throughput that limits allow; infinite if nothing limits it, 0 if no placement fits at all."""
    outcome = _solve(Problem(profile, cluster, Goal(samples=1.0, budget_usd=1e30)), seconds=0.2)
    return 1.0 / outcome.value if outcome.value > 0 else math.inf


def _comfortable(rng: Rng, profile: Profile, cluster: Cluster) -> float:
    """A throughput for which the type that is cheapest for the whole chain needs some units."""
    cheapest_type = min(
        (
            sum(layer.costs[name].compute_s for layer in profile.layers if name in layer.costs) * kind.price_per_hour,
            name,
        )
        for name, kind in cluster.types.items()
    )[1]
    one_unit_s = sum(layer.costs[cheapest_type].compute_s for layer in profile.layers if cheapest_type in layer.costs)
    return _log_uniform(rng, 0.5, 60) * profile.batch_size / max(one_unit_s, 1e-9)


def _profile_and_cluster(rng: Rng, layers: int, types: int, max_limit: int) -> tuple[Profile, Cluster]:
    names = [f"t{i}" for i in range(types)]
    devices = ["cpu" if i == 0 else str(rng.choice(["cpu", "cuda"])) for i in range(types)]
    kinds = ["embedding" if rng.random() < (0.7 if i == 0 else 0.1) else "fc" for i in range(layers)]
    has_server = rng.random() < 0.5
    batch = int(2 ** rng.integers(6, 14))
    # Half of the problems resemble hardware (a type is fast or slow at everything, and priced for it); in the other
    # half every figure is drawn by itself.
    if rng.random() < 0.5:
        speeds = [_log_uniform(rng, 0.5, 2) if d == "cpu" else _log_uniform(rng, 4, 100) for d in devices]
        prices = [0.04 * speed**0.8 * float(rng.lognormal(0, 0.5)) for speed in speeds]
        spread = float(rng.choice([0.1, 0.4, 0.8]))
    else:
        speeds = [1.0] * types
        prices = [float(rng.uniform(0.02, 4)) for _ in names]
        spread = float(rng.choice([0.5, 1.0, 2.0]))
    sync_spread = float(rng.choice([0.5, 1.5]))
    serves_all = rng.random() < 0.3
    serial = float(rng.choice([0.0, 0.02, 0.2], p=[0.15, 0.35, 0.5]))
    chain = []
    for i, kind in enumerate(kinds):
        work = _log_uniform(rng, 1e-3, 1e-1)
        state = _log_uniform(rng, 1e5, 3e8) * (30 if kind == "embedding" else 1)
        costs = {}
        for name, device, speed in zip(names, devices, speeds, strict=True):
            suits = _log_uniform(rng, 0.05, 1.0) if kind == "embedding" and device == "cuda" else 1.0
            compute = work / (speed * suits) * float(rng.lognormal(0, spread))
            costs[name] = {
                "compute_s": compute,
                "sync_s": 0.2 * (compute if sync_spread < 1 else work) * float(rng.lognormal(0, sync_spread)),
                "alpha": 1 - serial * float(rng.random()),
                "beta": 1 - serial * float(rng.random()),
                "ps_s": work * _log_uniform(rng, 0.01, 0.5)
                if has_server and (serves_all or kind == "embedding")
                else 0.0,
            }
        for name in names[1:]:
            if rng.random() < 0.04:
                del costs[name]
        chain.append({
            "name": f"layer{i}", "kind": kind, "output_bytes": int(batch * _log_uniform(rng, 16, 4e4)),
            "input_bytes": int(batch * _log_uniform(rng, 16, 4e4)), "state_bytes": int(state),
            "sharded": kind == "embedding", "costs": costs,
        })  # fmt: skip
    limited, linked, bounded = rng.random() < 0.8, rng.random() < 0.8, rng.random() < 0.6
    offers = {}
    for name, device, price in zip(names, devices, prices, strict=True):
        offer: dict[str, object] = {"device": device, "price_per_hour": price}
        # Nothing but the serial parts keeps a plan from growing without end, so without them there are limits.
        if serial == 0 or (limited and rng.random() < 0.9):
            offer["limit"] = max(1, int(_log_uniform(rng, 2, max_limit)))
        if linked:
            offer["bandwidth_gbps"] = _log_uniform(rng, 1, 200)
        if bounded:
            offer["memory_gb"] = _log_uniform(rng, 2, 100)
        offers[name] = offer
    cluster: dict[str, object] = {"types": offers}
    if has_server:
        cluster["parameter_server"] = str(rng.choice(names))
    profile = {"format": "heterps.profile/1", "model": "random", "batch_size": batch, "layers": chain}
    return Profile.from_dict(profile), Cluster.from_dict(cluster)


def _log_uniform(rng: Rng, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))
