"""The machines of the cluster, and on which of them each process of an attempt is, as Ray tells."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from heterps.runtime.cluster._ray import groups, ray
from heterps.runtime.cluster.layout import Layout, Resources
from heterps.runtime.cluster.policy import Died
from heterps.runtime.cluster.watch import Failed, names_of


@dataclass(frozen=True, slots=True)
class Node:
    """One machine."""

    id: str
    address: str

    @property
    def name(self) -> str:
        """For people: the address, and the beginning of the id, as one machine may run Ray several times."""
        return f"{self.address} ({self.id[:6]})"


def resources(*, avoid: Collection[str] = ()) -> list[Resources]:
    """The resources of each machine that is there, but for those of the ids in `avoid`."""
    return [dict(node["Resources"]) for node in _nodes() if node["Alive"] and node["NodeID"] not in avoid]


def nodes_of(job: str, layout: Layout) -> dict[str, Node]:
    """The machine of each replica and shard of a job's last attempt, by name; empty while it has no room."""
    there = {str(node["NodeID"]): Node(str(node["NodeID"]), str(node["NodeManagerAddress"])) for node in _nodes()}
    replicas, shards = names_of(layout.seats(), layout.shards)
    for held in groups.placement_group_table().values():
        if held["name"].startswith(f"heterps-{job}-") and held["state"] == "CREATED":
            bundles = held["bundles_to_node_id"]
            return {
                name: there[bundles[number]]
                for number, name in enumerate([*replicas, *shards])
                if bundles.get(number) in there
            }
    return {}


def _nodes() -> list[dict[str, Any]]:
    """What Ray says of all machines. What it raises may pass: its head may be away for a moment."""
    try:
        return list(ray.nodes())
    except Exception as error:
        raise Failed(Died("Ray", str(error).strip().partition("\n")[0])) from error
