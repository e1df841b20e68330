"""Plans for tests: any cut of any chain, all of it on this machine's cores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations

from heterps.models import Chain
from heterps.plan import Plan

TYPES = ("alpha", "beta", "gamma")


def make_plan(
    layers: int | Chain,
    cuts: Sequence[int] = (),
    *,
    units: int | Sequence[int] = 1,
    types: Sequence[str] | None = None,
    device: str = "cpu",
) -> Plan:
    """A plan that cuts before the layers `cuts`; neighbouring stages get other types."""
    count = len(layers.layers) if isinstance(layers, Chain) else layers
    bounds = [0, *cuts, count]
    stages = len(bounds) - 1
    of_stage = types or [TYPES[stage % 2] for stage in range(stages)]
    units = [units] * stages if isinstance(units, int) else units
    return Plan.model_validate({
        "format": "heterps.plan/1", "model": "test", "method": "by hand",
        "placement": [of_stage[stage] for stage in range(stages) for _ in range(bounds[stage], bounds[stage + 1])],
        "types": {name: {"device": device, "price_per_hour": 1.0} for name in TYPES},
        "stages": [
            {"first": bounds[stage], "last": bounds[stage + 1] - 1, "type": of_stage[stage], "units": units[stage]}
            for stage in range(stages)
        ],
        "predicted": {"throughput": 1.0, "usd_per_hour": 1.0, "usd_per_million_samples": 1.0},
        "search": {"seconds": 0.0, "evaluations": 0, "optimal": False},
        "inputs": {"profile_sha256": "", "cluster_sha256": "", "min_throughput": 0.0},
    })  # fmt: skip


def random_plan(layers: int | Chain, rng: random.Random) -> Plan:
    """1 to 4 stages, cut anywhere, on two or three types, of 1 to 3 units each."""
    count = len(layers.layers) if isinstance(layers, Chain) else layers
    stages = rng.randint(1, min(4, count))
    cuts = sorted(rng.sample(range(1, count), stages - 1))
    names = TYPES[: rng.choice((2, 3))]
    types: list[str] = []
    for _ in range(stages):
        types.append(rng.choice([name for name in names if not types or name != types[-1]]))
    return make_plan(count, cuts, units=[rng.randint(1, 3) for _ in range(stages)], types=types)


def every_plan(layers: int | Chain, *, stages: int) -> list[Plan]:
    """All plans of so many stages, one unit each."""
    count = len(layers.layers) if isinstance(layers, Chain) else layers
    return [make_plan(count, cuts) for cuts in combinations(range(1, count), stages - 1)]


def shape(plan: Plan) -> str:
    """Which layers each stage has, and on how many units: for messages."""
    return " | ".join(f"{stage.first}-{stage.last} {stage.type}x{stage.units}" for stage in plan.stages)
