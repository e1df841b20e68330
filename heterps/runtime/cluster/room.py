"""Where a run is: on which machines, by which plan. Looks at the cluster, asks the policy, and says what comes next."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from heterps.errors import Infeasible
from heterps.plan import Plan
from heterps.runtime.cluster.elastic import Placing, PlanFor
from heterps.runtime.cluster.journal import Journal
from heterps.runtime.cluster.layout import Layout
from heterps.runtime.cluster.nodes import Node, resources
from heterps.runtime.cluster.policy import (
    Event,
    GiveUp,
    Lacking,
    Limits,
    Replan,
    Restart,
    Retry,
    Returned,
    Straggler,
    decide,
    describe,
    find_stragglers,
)
from heterps.runtime.cluster.work import Work

log = logging.getLogger("heterps.cluster")

LEAST_BUSY = 0.3
"""Share of its time that a replica works if it holds the others up (assumed: it is the slowest of all, so near 1)."""


class Room:
    """The machines and the plan of a run's attempts."""

    def __init__(
        self, plan: Plan, placing: Placing, limits: Limits, journal: Journal, plan_for: PlanFor | None = None
    ) -> None:
        self.plan = self._whole = plan
        """The plan of the last attempt; `_whole` is the one that was asked for."""
        self._placing, self._limits, self._journal, self._plan_for = placing, limits, journal, plan_for
        self.slow: dict[str, float] = {}
        """Replicas that are slow, and how many times as long they take."""
        self._avoid: tuple[str, ...] = ()

    def find(
        self, work: Work, stop: threading.Event, *, begun: bool, step: int, on_wait: Callable[[], None]
    ) -> Work | None:
        """The work of the next attempt: waits until the machines hold the plan, or takes a smaller one.

        Args:
            work: of the attempt before.
            stop: ends the waiting; None is given then.
            begun: whether the run had its machines before.
            step: where the run stands, for the record.
            on_wait: called when there is something to wait for.

        Raises:
            Infeasible: if the policy gives up; says what is missing.
        """
        began, plan = time.monotonic(), self._whole
        self.slow = {}
        while True:
            layout, lack = self._try(plan)
            if lack is None:
                break
            on_wait()
            event = Lacking(lack, time.monotonic() - began, begun)
            decision = decide(event, failures=0, limits=self._limits)
            if isinstance(decision, GiveUp):
                raise Infeasible(decision.reason)
            if isinstance(decision, Replan) or self._is_smaller():
                plan, layout = self._smaller(lack)
                break
            assert isinstance(decision, Retry)
            if stop.wait(decision.after_s):
                return None
        if plan != self.plan:
            units = [f"{stage.type} × {stage.units}" for stage in plan.stages]
            self._journal.event("replan", stages=units, step=step)
            log.warning("going on by %s", " → ".join(units))
        self.plan = plan
        return replace(work, layout=layout, avoid=self._avoid)

    def _try(self, plan: Plan) -> tuple[Layout, str | None]:
        """The layout of a plan on the machines that are there, and what they lack for it."""
        for avoid in (self._avoid, ()):  # better on a slow machine than on none
            nodes = resources(avoid=avoid)
            layout = self._placing.layout(plan, nodes)
            lack = self._placing.lacks(layout, nodes)
            if lack is None:
                self._avoid = avoid
                break
        return layout, lack

    def _is_smaller(self) -> bool:
        """Whether the run was waited for before: it need not wait again for the same machines."""
        return self.plan != self._whole and self._try(self.plan)[1] is None

    def _smaller(self, lack: str) -> tuple[Plan, Layout]:
        nodes, self._avoid = resources(), ()
        plan = self._placing.smaller(self._whole, nodes, self._plan_for)
        if plan is None:
            raise Infeasible(f"what is left of the cluster cannot hold any part of the plan: {lack}; add machines")
        return plan, self._placing.layout(plan, nodes)

    def returned(self) -> Event | None:
        """Whether a run that has a smaller plan should go back to its own now."""
        if self.plan == self._whole or self._try(self._whole)[1] is not None:
            return None
        event = Returned()
        return event if isinstance(decide(event, failures=0, limits=self._limits), Restart) else None

    def straggling(
        self,
        stages: Sequence[Mapping[str, Sequence[float]]],
        nodes: Mapping[str, Node],
        *,
        busy: Mapping[str, float],
        step: int,
    ) -> Event | None:
        """Tells of replicas that have become slow; gives one that the run should go on without, if there is such.

        `stages` are the paces of each stage's replicas (`find_stragglers`), `nodes` their machines, `busy` their shares
        of time at work: one that mostly waits holds nobody up, however long its little work takes.
        """
        slow = {who: times for paces in stages for who, times in find_stragglers(paces, limits=self._limits).items()}
        found = {who: times for who, times in slow.items() if busy.get(who, 1.0) >= LEAST_BUSY}
        new, self.slow = [who for who in found if who not in self.slow], found
        for who in new:
            node = nodes.get(who)
            event = Straggler(who, found[who], node.name if node is not None else "")
            self._journal.event("straggler", who=who, times=found[who], machine=event.machine, step=step)
            log.warning("%s", describe(event))
            decision = decide(event, failures=len(self._avoid), limits=self._limits)
            if isinstance(decision, Restart) and node is not None and self._can_avoid(node):
                self._avoid = (*self._avoid, node.id)
                return event
        return None

    def _can_avoid(self, node: Node) -> bool:
        nodes = resources(avoid=(*self._avoid, node.id))
        return self._placing.lacks(self._placing.layout(self.plan, nodes), nodes) is None
