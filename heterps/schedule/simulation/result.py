"""Simulations of plans: throughput, money, what bounds them, and what each condition costs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from heterps.errors import InvalidInput
from heterps.plan import Plan
from heterps.schedule.cost import evaluate, stage_runs
from heterps.schedule.problem import Problem
from heterps.schedule.simulation.conditions import Conditions
from heterps.schedule.simulation.failures import Failures, run_with_failures
from heterps.schedule.simulation.loads import Measured, measure, work_of
from heterps.units import MILLION, SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class StageUse:
    """A stage in a simulation: shares of the time that its units compute, its link is busy, and its units wait.

    They wait for input, for their link or the server, or for the step before.
    """

    first: int
    last: int
    type: str
    units: int
    busy: float
    link_busy: float
    waiting: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A simulated run.

    `throughput` and the money include failures, `running_throughput` is what holds between them (samples a second).
    `bounds` names the busiest resource. Money is infinite where nothing gets done.
    """

    throughput: float
    running_throughput: float
    usd_per_hour: float
    stages: tuple[StageUse, ...]
    server_busy: float
    shared_busy: float
    bounds: str
    bounds_busy: float
    micro_batches: int
    staleness: int
    failures: Failures | None

    @property
    def usd_per_million_samples(self) -> float:
        """Dollars a million samples."""
        if self.throughput == 0:
            return math.inf
        return self.usd_per_hour / SECONDS_PER_HOUR / self.throughput * MILLION


@dataclass(frozen=True, slots=True)
class Rung:
    """One step from the closed form down to the simulation: what comes in, and the throughput with it.

    `costs` is the share of the rung before that is lost; negative if it gains.
    """

    name: str
    throughput: float
    costs: float


def simulate_units(
    problem: Problem, placement: Sequence[str], units: Sequence[int], server_units: int, conditions: Conditions
) -> Simulation:
    """A placement (type names, one a layer) with units for each stage and the server; limits are not checked."""
    for layer, name in zip(problem.profile.layers, placement, strict=True):
        if name not in layer.costs:
            raise InvalidInput(
                f"layer {layer.name!r} is placed on {name!r}, but its costs are of {', '.join(layer.costs)}"
            )
    work = work_of(problem, problem.encode(placement)[0])
    got = measure(problem, work, units, server_units, conditions)
    prices = {name: kind.price_per_hour for name, kind in problem.cluster.types.items()}
    runs = stage_runs(placement)
    rate = sum(prices[name] * k for (_, _, name), k in zip(runs, units, strict=True))
    if problem.cluster.parameter_server is not None:
        rate += prices[problem.cluster.parameter_server] * server_units
    fails = conditions.failures_per_unit_hour > 0 or conditions.checkpoint_s > 0
    failures = run_with_failures(conditions, sum(units) + server_units) if fails else None
    bounds, bounds_busy = _busiest(got)
    return Simulation(
        throughput=got.throughput * (1.0 if failures is None else failures.share),
        running_throughput=got.throughput,
        usd_per_hour=rate,
        stages=tuple(
            StageUse(first=first, last=last, type=name, units=k, busy=busy, link_busy=link, waiting=1 - busy)
            for (first, last, name), k, busy, link in zip(runs, units, got.compute, got.link, strict=True)
        ),
        server_busy=got.server,
        shared_busy=got.shared,
        bounds=bounds,
        bounds_busy=bounds_busy,
        micro_batches=got.micro_batches,
        staleness=got.staleness,
        failures=failures,
    )


def simulate_plan(problem: Problem, plan: Plan, conditions: Conditions) -> Simulation:
    """The plan as it is."""
    server = plan.parameter_server.units if plan.parameter_server else 0
    return simulate_units(problem, plan.placement, [stage.units for stage in plan.stages], server, conditions)


def what_it_costs(problem: Problem, plan: Plan, conditions: Conditions) -> tuple[Rung, ...]:
    """From the closed form to the simulation: the pipeline itself, then shared links, jitter and failures, if any.

    The closed form's `sync` factor is in its rung, so the pipeline's is the difference to it.
    """
    server = plan.parameter_server.units if plan.parameter_server else 0
    units = [stage.units for stage in plan.stages]
    predicted = evaluate(problem.profile, problem.cluster, plan.placement, units, server, goal=problem.goal).throughput
    calm = replace(conditions, jitter=0.0, shared_gbps=None, failures_per_unit_hour=0.0, checkpoint_s=0.0)
    adds: list[tuple[str, dict[str, float | None]]] = [("pipeline", {})]
    if conditions.shared_gbps is not None:
        adds.append(("shared links", {"shared_gbps": conditions.shared_gbps}))
    if conditions.jitter > 0:
        adds.append(("jitter", {"jitter": conditions.jitter}))
    if conditions.failures_per_unit_hour > 0 or conditions.checkpoint_s > 0:
        fails = {"failures_per_unit_hour": conditions.failures_per_unit_hour, "checkpoint_s": conditions.checkpoint_s}
        adds.append(("failures", {**fails}))
    rungs = [Rung("closed form", predicted, 0.0)]
    for name, added in adds:
        calm = replace(calm, **added)  # type: ignore[arg-type]
        got = simulate_plan(problem, plan, calm).throughput
        before = rungs[-1].throughput
        rungs.append(Rung(name, got, 1 - got / before if before > 0 else 0.0))
    return tuple(rungs)


def _busiest(got: Measured) -> tuple[str, float]:
    """The resource that is busy most of the time; the first of equals."""
    candidates = [(f"stage {i}, computing", busy) for i, busy in enumerate(got.compute)]
    candidates += [(f"stage {i}, link", busy) for i, busy in enumerate(got.link)]
    candidates += [("shared links", got.shared), ("parameter server", got.server)]
    return max(candidates, key=lambda candidate: candidate[1])
