"""A plan and the machines that are there: whether they hold it, and the smaller plan that they do. Decides only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor
from typing import Any

from heterps.plan import Plan
from heterps.runtime.cluster.layout import Layout, Resources, lay_out, missing

Nodes = Sequence[Mapping[str, float]]
"""The resources of each machine."""
PlanFor = Callable[[Mapping[str, int]], Plan | None]
"""Makes the best plan for the units of each type that are left; None if it knows none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placing:
    """How plans of a run become processes."""

    tables: int
    replicas: int | tuple[int, ...] | None = None
    shards: int | None = None
    devices: Mapping[str, str] | None = None

    def layout(self, plan: Plan, nodes: Nodes) -> Layout:
        """The processes of a plan on such machines; as many replicas as asked for, where the plan still has them."""
        asked = self.replicas
        if isinstance(asked, tuple) and len(asked) != len(plan.stages):
            asked = None
        return lay_out(
            plan, tables=self.tables, node_cpus=max((node.get("CPU", 0.0) for node in nodes), default=1.0),
            replicas=asked, shards=self.shards, devices=self.devices,
        )  # fmt: skip

    def lacks(self, layout: Layout, nodes: Nodes) -> str | None:
        """What the machines lack for a layout, in words; None if they hold it."""
        return missing(layout.demands(_offered(nodes)), nodes)

    def smaller(self, plan: Plan, nodes: Nodes, plan_for: PlanFor | None = None) -> Plan | None:
        """The plan to go on by with the machines that are left; None if there is none.

        It is the same one if that fits in other processes; else the one that `plan_for` makes; else the same one with
        fewer units. Where the new one does not fit as a whole, it too gets fewer units.
        """
        if self.lacks(self.layout(plan, nodes), nodes) is None:
            return plan
        made = plan_for(self.units_left(plan, nodes)) if plan_for is not None else None
        if made is not None and (fitting := self.shrunk(made, nodes)) is not None:
            return fitting
        return self.shrunk(plan, nodes)

    def shrunk(self, plan: Plan, nodes: Nodes) -> Plan | None:
        """The plan with as many units as fit: one by one they are taken from the stage that has kept most of its own.

        Only stages that need what the machines lack lose some, and none its last one.
        """
        now = plan
        while True:
            layout = self.layout(now, nodes)
            if self.lacks(layout, nodes) is None:
                return now
            names = self._scarce(layout, nodes)
            offered = _offered(nodes)
            needed = [
                set().union(*layout.demands(offered)[start:stop]) & names for start, stop in _stretches(layout)
            ]  # of each stage, and of the servers
            units = [*(stage.units for stage in now.stages), layout.shards]
            given = [*(stage.units for stage in plan.stages), max(1, self.layout(plan, nodes).shards)]
            fixed = self.shards is not None or now.parameter_server is None  # shards are not the plan's then
            shares = [
                (count / whole, count, number)
                for number, (count, whole) in enumerate(zip(units, given, strict=True))
                if count > 1 and needed[number] and not (fixed and number == len(now.stages))
            ]
            if not shares:
                return None
            now = _with_one_less(now, max(shares)[2])

    def _scarce(self, layout: Layout, nodes: Nodes) -> set[str]:
        """Resources of which there is too little; all of them, where only together they do not fit."""
        demands = layout.demands(_offered(nodes))
        names = {name for demand in demands for name in demand}
        found = {
            name for name in names
            if missing([{name: demand[name]} for demand in demands if name in demand], nodes) is not None
        }  # fmt: skip
        return found or names

    def units_left(self, plan: Plan, nodes: Nodes) -> dict[str, int]:
        """Units of each type of a plan that the machines have; where its servers are not planned, without their cores.

        Types on cores that the cluster does not name as resources of their own share the cores.
        """
        offered = _offered(nodes)
        unplanned = max(1, self.shards or 1) if self.tables and plan.parameter_server is None else 0
        left = {}
        for name, kind in plan.types.items():
            device = (self.devices or {}).get(name, kind.device).partition("+")[0].partition(":")[0]
            there = offered.get("GPU", 0.0) if device == "cuda" else offered.get("CPU", 0.0) - unplanned
            left[name] = max(0, floor(min(there, offered.get(name, there))))
        return left


def _stretches(layout: Layout) -> list[tuple[int, int]]:
    """Where the demands of each stage, and behind them those of the shards, begin and end."""
    ends = [0]
    for stage in layout.stages:
        ends.append(ends[-1] + stage.replicas)
    ends.append(ends[-1] + layout.shards)
    return list(pairwise(ends))


def _with_one_less(plan: Plan, number: int) -> Plan:
    """One unit less for a stage, or for the servers, which come behind the stages."""
    data: dict[str, Any] = plan.to_dict()
    part = data["stages"][number] if number < len(plan.stages) else data["parameter_server"]
    part["units"] -= 1
    return Plan.from_dict(data)


def _offered(nodes: Nodes) -> Resources:
    offered: Resources = {}
    for node in nodes:
        for name, amount in node.items():
            offered[name] = offered.get(name, 0.0) + float(amount)
    return offered
