"""The best plan for what is left of a cluster that lost machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from heterps.errors import Infeasible, InvalidInput
from heterps.plan import Cluster, Plan, ResourceType
from heterps.schedule.goal import Goal
from heterps.schedule.infeasible import NO_MONEY_LIMIT_USD
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem


@dataclass(frozen=True, slots=True)
class Replanner:
    """Plans a problem again with fewer units. It can be sent to other processes."""

    problem: Problem

    def __call__(self, left: Mapping[str, int]) -> Plan | None:
        """The plan for the problem's goal with at most so many units of each type, or, out of its reach, the fastest.

        Types that `left` does not name are left out, as are those of which there is nothing; None if no layer or no
        server has a place any more. It is proved by method `exact`.
        """
        problem, cluster = self.problem, self.problem.cluster
        types = {
            name: kind.model_copy(update={"limit": min(left[name], kind.limit or left[name])})
            for name, kind in cluster.types.items()
            if left.get(name, 0) > 0
        }
        if not types or (cluster.parameter_server is not None and cluster.parameter_server not in types):
            return None
        fastest = replace(problem.goal, min_throughput=None, samples=1.0, deadline_hours=None,
                          budget_usd=NO_MONEY_LIMIT_USD)  # fmt: skip
        for goal in (problem.goal, fastest):
            try:
                return make_plan(self._with(types, cluster, goal), method="exact")
            except Infeasible:
                continue
            except InvalidInput:  # a layer that runs nowhere any more
                return None
        return None

    def _with(self, types: dict[str, ResourceType], cluster: Cluster, goal: Goal) -> Problem:
        left = Cluster(types=types, parameter_server=cluster.parameter_server)
        return Problem(self.problem.profile, left, goal)
