r"""A plan on other numbers of units: how much of each unit is left, and what takes the rest.

The units are shared out among the stages as in the plan, at least one each, and so are those of the server beside them.
With n units, n₁ the first number that is asked for,

    efficiency(n) = (throughput(n) / n) / (throughput(n₁) / n₁).

What takes the rest is found so: on flawless hardware all of a stage's time is divided by its units, the server and the
network carry anything, nothing varies or fails, and the pipeline never drains. Each flaw alone is put into that; the
one that leaves least of the throughput is the limit. Flaws overlap, so what they take does not add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from heterps.errors import InvalidInput
from heterps.plan import Plan
from heterps.schedule.problem import Problem
from heterps.schedule.simulation.conditions import FULL, MICRO_BATCHES, Conditions
from heterps.schedule.simulation.failures import expected_share
from heterps.schedule.simulation.growth import grown
from heterps.schedule.simulation.loads import Work, measure, work_of

NOTEWORTHY = 1e-3
"""Share that a flaw must take to be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A plan on `units` units in all stages together, and `server_units` more for the parameter server.

    `limit` is the flaw that by itself takes most, `limit_costs` the share of a flawless throughput that it takes; ""
    and 0 where none takes a thousandth.
    """

    units: int
    server_units: int
    batch_size: int
    throughput: float
    efficiency: float
    limit: str
    limit_costs: float


def scale(
    problem: Problem,
    plan: Plan,
    conditions: Conditions,
    units: Sequence[int],
    *,
    fixed_server: bool = False,
    grow_batch: bool = False,
) -> tuple[Point, ...]:
    """Simulates a plan on each of these numbers of units; limits of the cluster are not checked.

    Args:
        problem: what the plan was made from.
        plan: gives the placement and the shares of its stages and server.
        conditions: of all of them. Failures count as they do on average over long runs.
        units: of all stages together, at least one for each.
        fixed_server: leave the server as the plan has it.
        grow_batch: the profile's batch is that of the first number, and each unit's share of a batch stays; else the
            batch stays, and the shares get smaller.
    """
    if not units or min(units) < len(plan.stages):
        given = ", ".join(map(str, units)) or "empty"
        raise InvalidInput(f"--units is {given}; each must be at least {len(plan.stages)}, one for each stage")
    points: list[Point] = []
    for count in units:
        batch = round(problem.profile.batch_size * count / units[0]) if grow_batch else problem.profile.batch_size
        scaled = _Scaled(problem, plan, conditions, count, batch_size=batch, fixed_server=fixed_server)
        throughput = scaled.throughput()
        first = points[0].throughput / points[0].units if points else throughput / count
        limit, costs = scaled.limit()
        points.append(
            Point(
                units=count, server_units=scaled.server, batch_size=batch, throughput=throughput,
                efficiency=throughput / count / first if first > 0 else 0.0, limit=limit, limit_costs=costs,
            )
        )  # fmt: skip
    return tuple(points)


def shared_out(units: int, shares: Sequence[int]) -> list[int]:
    """Whole units by shares, at least one each: where one more is due most, it goes."""
    total = sum(shares)
    given = [max(1, units * share // total) for share in shares]
    while sum(given) > units:
        given[max(range(len(given)), key=lambda i: given[i] * total - units * shares[i] if given[i] > 1 else -1)] -= 1
    while sum(given) < units:
        given[max(range(len(given)), key=lambda i: units * shares[i] - given[i] * total)] += 1
    return given


class _Scaled:
    """The plan on some number of units."""

    def __init__(
        self, problem: Problem, plan: Plan, conditions: Conditions, units: int, *, batch_size: int, fixed_server: bool
    ) -> None:
        if batch_size != problem.profile.batch_size:
            profile = grown(problem.profile, batch_size)
            problem = Problem(profile, problem.cluster, problem.goal, problem.profile_source, problem.cluster_source)
        self._problem, self._conditions = problem, conditions
        self._work = work_of(problem, problem.encode(plan.placement)[0])
        shares = [stage.units for stage in plan.stages]
        self._units = shared_out(units, shares)
        planned = plan.parameter_server.units if plan.parameter_server else 0
        self.server = planned if fixed_server else math.ceil(planned * units / sum(shares))

    def throughput(self) -> float:
        """Samples a second, failures included."""
        return self._run(self._work, self._conditions)

    def limit(self) -> tuple[str, float]:
        """The flaw that by itself takes most of a flawless throughput, and the share that it takes."""
        micro_batches = self._conditions.micro_batches or self._problem.goal.micro_batches or MICRO_BATCHES
        ahead = math.ceil(FULL * self._work.stages / micro_batches)
        calm = Conditions(micro_batches=micro_batches, staleness=ahead, steps=self._conditions.steps)
        ideal = self._run(_flawless(self._work), calm)
        found = [(1 - self._run(work, given) / ideal, name) for name, work, given in self._flaws(calm)]
        costs, name = max(found)
        return (name, costs) if costs > NOTEWORTHY else ("", 0.0)

    def _flaws(self, calm: Conditions) -> Iterator[tuple[str, Work, Conditions]]:
        """Each by itself: its name, the work and the conditions."""
        work, given, flawless = self._work, self._conditions, _flawless(self._work)
        yield "serial computing", replace(flawless, serial=work.serial, parallel=work.parallel), calm
        exchange = replace(flawless, sync_serial=work.sync_serial, sync_parallel=work.sync_parallel)
        yield "serial exchange", exchange, calm
        yield "parameter server", replace(flawless, server=work.server), calm
        yield "shared network", flawless, replace(calm, shared_gbps=given.shared_gbps)
        yield "stragglers", flawless, replace(calm, jitter=given.jitter, seed=given.seed)
        yield "draining", flawless, replace(calm, staleness=given.staleness)
        failing = replace(
            calm, failures_per_unit_hour=given.failures_per_unit_hour, restart_s=given.restart_s,
            checkpoint_every_s=given.checkpoint_every_s, checkpoint_s=given.checkpoint_s,
        )  # fmt: skip
        yield "failures", flawless, failing

    def _run(self, work: Work, conditions: Conditions) -> float:
        got = measure(self._problem, work, self._units, self.server, conditions)
        return got.throughput * expected_share(conditions, sum(self._units) + self.server)


def _flawless(work: Work) -> Work:
    """The same work, all of which more units shorten, and none of which a server does."""
    return replace(
        work, serial=0 * work.serial, parallel=work.serial + work.parallel, sync_serial=0 * work.sync_serial,
        sync_parallel=work.sync_serial + work.sync_parallel, server=0 * work.server,
    )  # fmt: skip
