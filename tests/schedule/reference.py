"""A slow planner to check the fast one against: every placement with every vector of units, by the cost model alone."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from heterps.plan import Cluster, Profile
from heterps.schedule.cost import evaluate, stage_times, violations
from heterps.schedule.goal import Goal

SLACK = 1e-9
"""A throughput counts as reached, and money as enough, within this share."""

Placement = tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """One plan that keeps limits and memory."""

    units: tuple[int, ...]
    server_units: int
    throughput: float
    usd_per_hour: float

    @property
    def usd_per_sample(self) -> float:
        return self.usd_per_hour / 3600 / self.throughput


class Reference:
    """All plans of a small problem, in the mode of `goal`; each method then takes any goal of that mode."""

    def __init__(self, profile: Profile, cluster: Cluster, goal: Goal) -> None:
        self.profile, self.cluster, self.goal = profile, cluster, goal
        placements = product(cluster.types, repeat=len(profile.layers))
        self.points: dict[Placement, list[Point]] = {placement: self._points(placement) for placement in placements}

    def cheapest(self, goal: Goal, placement: Placement | None = None) -> float:
        """Least dollars a sample, infinite if no plan meets the goal; over all placements unless one is given."""
        return min((point.usd_per_sample for point in self._allowed(goal, placement)), default=math.inf)

    def fastest(self, goal: Goal, placement: Placement | None = None) -> float:
        """Most samples a second within the budget, 0 if no plan meets the goal."""
        most = goal.max_usd_per_sample * (1 + SLACK)
        affordable = (point for point in self._allowed(goal, placement) if point.usd_per_sample <= most)
        return max((point.throughput for point in affordable), default=0.0)

    def all_points(self) -> list[Point]:
        return [point for points in self.points.values() for point in points]

    def _allowed(self, goal: Goal, placement: Placement | None) -> list[Point]:
        least = goal.throughput_floor * (1 - SLACK)
        most = math.inf if goal.max_usd_per_hour is None else goal.max_usd_per_hour * (1 + SLACK)
        points = self.all_points() if placement is None else self.points[placement]
        return [point for point in points if point.throughput >= least and point.usd_per_hour <= most]

    def _points(self, placement: Placement) -> list[Point]:
        layers = self.profile.layers
        if any(name not in layer.costs for name, layer in zip(placement, layers, strict=True)):
            return []
        stages = stage_times(self.profile, self.cluster, placement)
        server = self.cluster.parameter_server
        # Without work for it a server only costs money, and with work it must have a unit to get anywhere.
        served = server is not None and any(stage.server_s > 0 for stage in stages)
        server_choices: Sequence[int] = self._units(server) if server is not None and served else [0]
        found = []
        for units in product(*(self._units(stage.type) for stage in stages)):
            for server_units in server_choices:
                if violations(self.cluster, stages, units, server_units):
                    continue
                plan = evaluate(self.profile, self.cluster, placement, units, server_units, goal=self.goal)
                found.append(Point(units, server_units, plan.throughput, plan.usd_per_hour))
        return found

    def _units(self, name: str) -> range:
        limit = self.cluster.types[name].limit
        assert limit is not None, "the reference enumerates up to the limits"
        return range(1, limit + 1)


def random_reference(seed: int) -> Reference:
    """All plans of a random problem of up to 5 layers and 3 types with limits of 1 to 4 units."""
    rng = random.Random(seed)
    types = rng.choice([1, 2, 2, 2, 3])
    layers = rng.randint(1, 4 if types == 3 else 5)
    sync = rng.random() < 0.4
    goal = Goal(min_throughput=0, mode="sync" if sync else "async", micro_batches=rng.randint(1, 8) if sync else None)
    return Reference(*random_inputs(rng, layers=layers, types=types), goal)


def random_inputs(rng: random.Random, *, layers: int, types: int) -> tuple[Profile, Cluster]:
    """A random profile and cluster with limits of 1 to 4 units, and some of: memory, server, missing types, ties."""
    names = [f"type{i}" for i in range(types)]
    round_numbers = rng.random() < 0.3  # ties, and unit counts that come out whole

    def seconds() -> float:
        return rng.choice([0.01, 0.02, 0.04]) if round_numbers else math.exp(rng.uniform(-7, -2.5))

    def share() -> float:
        return rng.choice([1.0, 0.5]) if round_numbers else rng.choice([1.0, rng.uniform(0.6, 1), rng.uniform(0, 1)])

    serves = rng.random() < 0.5
    tight_memory = rng.random() < 0.5
    chain = []
    for i in range(layers):
        must_run = rng.choice(names)
        costs = {
            name: {
                "compute_s": seconds(),
                "sync_s": rng.choice([0.0, seconds(), seconds()]),
                "alpha": share(),
                "beta": share(),
                "ps_s": rng.choice([0.0, seconds() / 2]) if serves else 0.0,
            }
            for name in names
            if name == must_run or rng.random() < 0.85
        }
        chain.append({
            "name": f"layer{i}", "output_bytes": rng.choice([0, int(math.exp(rng.uniform(9, 16)))]), "input_bytes": 0,
            "state_bytes": int(rng.uniform(0, 2e9)) if tight_memory else 0, "sharded": rng.random() < 0.5,
            "costs": costs,
        })  # fmt: skip
    offers: dict[str, dict[str, object]] = {}
    for name in names:
        price = rng.choice([0.5, 1.0, 2.0]) if round_numbers else math.exp(rng.uniform(-3, 1.5))
        offers[name] = {"device": "cpu", "price_per_hour": price, "limit": rng.randint(1, 4)}
        if rng.random() < 0.7:
            offers[name]["bandwidth_gbps"] = math.exp(rng.uniform(0, 3))
        if tight_memory and rng.random() < 0.8:
            offers[name]["memory_gb"] = rng.uniform(0.5, 4)
    profile = {"format": "heterps.profile/1", "batch_size": rng.choice([1, 7, 64]), "layers": chain}
    cluster = {"types": offers} | ({"parameter_server": rng.choice(names)} if serves or rng.random() < 0.1 else {})
    return Profile.from_dict(profile), Cluster.from_dict(cluster)
