"""From a plan to processes: which replicas and shards there are, and what each needs of the cluster. Decides only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from heterps.errors import InvalidInput
from heterps.plan import Plan

Resources = dict[str, float]
"""Ray's names of resources -> how much of them."""


@dataclass(frozen=True, slots=True, order=True)
class Seat:
    """The place of a replica: number `replica` of stage `stage`."""

    stage: int
    replica: int

    def __str__(self) -> str:
        return f"stage {self.stage} replica {self.replica}"


@dataclass(frozen=True, slots=True)
class StageLayout:
    """One stage of a plan as processes."""

    number: int
    first: int
    last: int
    type: str
    units: int
    device: str
    """cpu or cuda."""
    shares: tuple[int, ...]
    """Units of each replica: threads on cores, and 1 on GPUs."""

    @property
    def replicas(self) -> int:
        """Processes of the stage."""
        return len(self.shares)

    def seats(self) -> list[Seat]:
        """Of all its replicas."""
        return [Seat(self.number, replica) for replica in range(self.replicas)]


@dataclass(frozen=True, slots=True)
class Layout:
    """All processes of a run."""

    stages: tuple[StageLayout, ...]
    shards: int
    """Parameter servers."""
    server_type: str

    def seats(self) -> list[Seat]:
        """Of all replicas, stage by stage."""
        return [seat for stage in self.stages for seat in stage.seats()]

    def owner(self, stage: int, micro_batch: int) -> Seat:
        """The replica of a stage that computes a micro-batch."""
        return Seat(stage, micro_batch % self.stages[stage].replicas)

    def demands(self, offered: Mapping[str, float]) -> list[Resources]:
        """What each process needs: first the replicas in the order of `seats`, then the shards.

        A type that the cluster offers as a resource of its own name is asked for by that name too.
        """
        needed = [_demand(stage.type, stage.device, share, offered) for stage in self.stages for share in stage.shares]
        return needed + [_demand(self.server_type, "cpu", 1, offered)] * self.shards


def lay_out(
    plan: Plan,
    *,
    tables: int,
    node_cpus: float = 1.0,
    replicas: int | Sequence[int] | None = None,
    shards: int | None = None,
    devices: Mapping[str, str] | None = None,
) -> Layout:
    """The processes of a plan.

    Args:
        plan: its stages, their units, and the units of its parameter server.
        tables: how many the chain has; with some there is at least one shard.
        node_cpus: cores of the largest machine: a stage on more cores has a replica for each such machine.
        replicas: of each stage, at most its units; None: as few as machines allow on cores, and one for each GPU.
        shards: parameter servers; None: the plan's units for them.
        devices: resource type -> cpu or cuda, where it is not the plan's.
    """
    count = len(plan.stages)
    given = [replicas] * count if isinstance(replicas, int) or replicas is None else list(replicas)
    if len(given) != count:
        raise InvalidInput(f"replicas: one number for each of the {count} stages, not {len(given)}")
    stages = []
    for number, (stage, wanted) in enumerate(zip(plan.stages, given, strict=True)):
        device = (devices or {}).get(stage.type, plan.types[stage.type].device)
        device = device.partition("+")[0].partition(":")[0]  # which of a machine's GPUs is Ray's matter
        least = stage.units if device == "cuda" else max(1, ceil(stage.units / max(1.0, node_cpus)))
        of_stage = least if wanted is None else min(wanted, stage.units)
        if of_stage < 1:
            raise InvalidInput(f"replicas: at least 1 for each stage, not {wanted}")
        shares = tuple(len(range(part, stage.units, of_stage)) for part in range(of_stage))
        if device == "cuda":
            shares = (1,) * of_stage
        stages.append(StageLayout(number, stage.first, stage.last, stage.type, stage.units, device, shares))
    server = plan.parameter_server
    planned = server.units if server is not None else 0
    if shards is not None and shards < 0:
        raise InvalidInput(f"shards: 0 or more, not {shards}")
    needed = 0 if tables == 0 else max(1, planned if shards is None else shards)
    return Layout(tuple(stages), needed, server.type if server is not None else "cpu")


def missing(demands: Sequence[Resources], nodes: Sequence[Mapping[str, float]]) -> str | None:
    """What a cluster of such machines lacks, needed against there; None if each process finds a place.

    Processes are placed largest first, each on the first machine that has room: it may call a layout too large that a
    cleverer packing would fit, and never the other way round.
    """
    free = [dict(node) for node in nodes]
    unplaced = []
    for demand in sorted(demands, key=lambda demand: -max(demand.values())):
        for node in free:
            if all(node.get(name, 0.0) >= amount for name, amount in demand.items()):
                for name, amount in demand.items():
                    node[name] -= amount
                break
        else:
            unplaced.append(demand)
    if not unplaced:
        return None
    names = sorted({name for demand in unplaced for name in demand})
    lines = []
    for name in names:
        need, largest = sum(demand.get(name, 0.0) for demand in demands), max(d.get(name, 0.0) for d in demands)
        there = sum(node.get(name, 0.0) for node in nodes)
        most = max((node.get(name, 0.0) for node in nodes), default=0.0)
        lines.append(f"{name}: {need:g} needed (up to {largest:g} on one machine), {there:g} there (at most {most:g})")
    return "; ".join(lines)


def _demand(type_: str, device: str, units: int, offered: Mapping[str, float]) -> Resources:
    demand: Resources = {"GPU": 1.0} if device == "cuda" else {"CPU": float(units)}
    if type_ in offered and type_ not in demand:
        demand[type_] = float(units)
    return demand
