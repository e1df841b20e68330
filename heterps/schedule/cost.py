r"""The cost model: what a placement with given units gives. Pure functions.

For a stage of layers i..j on a type with k units, per sample of a batch of B samples:

    compute        S + P/k    S  = sum (1 - alpha) compute_s / B    P  = sum alpha compute_s / B
    communication  DS + DP/k  DS = sum (1 - beta) sync_s / B        DP = (sum beta sync_s + x) / B

where x = 8 bytes / (1e9 bandwidth_gbps) and bytes counts twice (activations there, gradients back) what crosses the cut
before the stage and the cut behind it. Communication overlaps computing, so the stage takes the larger of the two. The
slowest stage, or the parameter server with p = sum ps_s / B unit-seconds of work a sample, sets the throughput; a
synchronous pipeline keeps M / (M + stages - 1) of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from heterps.plan import Cluster, Layer, Profile
from heterps.schedule.goal import Goal
from heterps.units import BITS_PER_BYTE, GIGA, SECONDS_PER_HOUR

Binds = Literal["compute", "communication"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTime:
    """A stage before units are chosen: seconds per sample, serial and parallel parts, and bytes of memory."""

    first: int
    last: int
    type: str
    serial_s: float
    parallel_s: float
    sync_serial_s: float
    sync_parallel_s: float
    server_s: float
    replicated_bytes: float
    sharded_bytes: float

    def compute_s(self, units: float) -> float:
        """Seconds of computing a sample on so many units."""
        return self.serial_s + self.parallel_s / units

    def communication_s(self, units: float) -> float:
        """Seconds of communication a sample on so many units."""
        return self.sync_serial_s + self.sync_parallel_s / units

    def seconds(self, units: float) -> float:
        """Seconds a sample on so many units: communication overlaps computing."""
        return max(self.compute_s(units), self.communication_s(units))

    def bytes_per_unit(self, units: float) -> float:
        """Bytes of weights and optimizer state on each of so many units."""
        return self.replicated_bytes + self.sharded_bytes / units


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage of a breakdown. Times are seconds per sample; `idle` is the share of time it waits for others."""

    first: int
    last: int
    type: str
    units: int
    compute_s: float
    communication_s: float
    binds: Binds
    idle: float
    usd_per_hour: float

    @property
    def seconds(self) -> float:
        """Seconds a sample."""
        return max(self.compute_s, self.communication_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCost:
    """The parameter server in a breakdown; `seconds` per sample."""

    type: str
    units: int
    seconds: float
    idle: float
    usd_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """What a plan gives, stage by stage. `slowest` is the stage that sets the throughput, None if the server does."""

    stages: tuple[StageCost, ...]
    server: ServerCost | None
    slowest: int | None
    fill: float
    throughput: float
    usd_per_hour: float

    @property
    def usd_per_sample(self) -> float:
        """Dollars a sample."""
        return self.usd_per_hour / SECONDS_PER_HOUR / self.throughput


def stage_runs(placement: Sequence[str]) -> list[tuple[int, int, str]]:
    """The stages of a placement as (first, last, type), last included: maximal runs of one type."""
    runs = [list(group) for _, group in groupby(range(len(placement)), key=lambda layer: placement[layer])]
    return [(run[0], run[-1], placement[run[0]]) for run in runs]


def stage_time(profile: Profile, cluster: Cluster, first: int, last: int, name: str) -> StageTime:
    """Layers first..last (included) on the named type; KeyError if the type cannot run one of them."""
    layers, batch = profile.layers, profile.batch_size
    costs = [layer.costs[name] for layer in layers[first : last + 1]]
    crossing = (2.0 * layers[first - 1].output_bytes if first > 0 else 0.0) + (
        2.0 * layers[last].output_bytes if last < len(layers) - 1 else 0.0
    )
    gbps = cluster.types[name].bandwidth_gbps
    link_s = 0.0 if gbps is None else crossing * BITS_PER_BYTE / (gbps * GIGA)
    return StageTime(
        first=first,
        last=last,
        type=name,
        serial_s=sum((1 - c.alpha) * c.compute_s for c in costs) / batch,
        parallel_s=sum(c.alpha * c.compute_s for c in costs) / batch,
        sync_serial_s=sum((1 - c.beta) * c.sync_s for c in costs) / batch,
        sync_parallel_s=(sum(c.beta * c.sync_s for c in costs) + link_s) / batch,
        server_s=0.0 if cluster.parameter_server is None else sum(c.ps_s for c in costs) / batch,
        replicated_bytes=_state(layers[first : last + 1], sharded=False),
        sharded_bytes=_state(layers[first : last + 1], sharded=True),
    )


def stage_times(profile: Profile, cluster: Cluster, placement: Sequence[str]) -> list[StageTime]:
    """All stages of a placement."""
    return [stage_time(profile, cluster, *run) for run in stage_runs(placement)]


def evaluate(
    profile: Profile, cluster: Cluster, placement: Sequence[str], units: Sequence[int], server_units: int, *, goal: Goal
) -> Breakdown:
    """What the placement gives with the units of each stage and of the server; limits and memory are not checked."""
    stages = stage_times(profile, cluster, placement)
    seconds = [stage.seconds(k) for stage, k in zip(stages, units, strict=True)]
    work = sum(stage.server_s for stage in stages)
    if work > 0:
        seconds.append(work / server_units if server_units else math.inf)
    period = max(seconds)
    slowest = seconds.index(period)
    prices = {name: kind.price_per_hour for name, kind in cluster.types.items()}
    parts = tuple(_stage_cost(s, k, period, prices[s.type]) for s, k in zip(stages, units, strict=True))
    server = None
    if cluster.parameter_server is not None:
        server = ServerCost(
            type=cluster.parameter_server,
            units=server_units,
            seconds=work / server_units if server_units else 0.0,
            idle=1 - work / server_units / period if server_units else 0.0,
            usd_per_hour=prices[cluster.parameter_server] * server_units,
        )
    fill = goal.fill(len(stages))
    return Breakdown(
        stages=parts,
        server=server,
        slowest=slowest if slowest < len(stages) else None,
        fill=fill,
        throughput=fill / period,
        usd_per_hour=sum(part.usd_per_hour for part in parts) + (server.usd_per_hour if server else 0.0),
    )


def violations(cluster: Cluster, stages: Sequence[StageTime], units: Sequence[int], server_units: int) -> list[str]:
    """What the units break, in words: limits of types and memory of units. Empty if the plan fits."""
    found = []
    used = dict.fromkeys(cluster.types, 0)
    for stage, k in zip(stages, units, strict=True):
        used[stage.type] += k
        memory = cluster.types[stage.type].memory_gb
        if memory is not None and stage.bytes_per_unit(k) > memory * GIGA * (1 + 1e-9):
            found.append(
                f"layers {stage.first}..{stage.last} need {stage.bytes_per_unit(k) / GIGA:.3g} GB on each of {k} "
                f"{stage.type}, which has {memory:g} GB"
            )
    if cluster.parameter_server is not None:
        used[cluster.parameter_server] += server_units
    for name, count in used.items():
        limit = cluster.types[name].limit
        if limit is not None and count > limit:
            found.append(f"{count} units of {name}, the limit is {limit}")
    return found


def _stage_cost(stage: StageTime, units: int, period_s: float, price_per_hour: float) -> StageCost:
    compute, communication = stage.compute_s(units), stage.communication_s(units)
    return StageCost(
        first=stage.first,
        last=stage.last,
        type=stage.type,
        units=units,
        compute_s=compute,
        communication_s=communication,
        binds="compute" if compute >= communication else "communication",
        idle=1 - max(compute, communication) / period_s,
        usd_per_hour=price_per_hour * units,
    )


def _state(layers: Sequence[Layer], *, sharded: bool) -> float:
    return float(sum(layer.state_bytes for layer in layers if layer.sharded == sharded))
