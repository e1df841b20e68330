"""Why a goal cannot be met: what is needed, what there is, and the nearest goal that works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from decimal import ROUND_DOWN, Context

import numpy as np
from numpy.typing import NDArray

from heterps._native import Graph
from heterps.documents import FrozenDict
from heterps.errors import Infeasible
from heterps.schedule.cost import StageTime, stage_times
from heterps.schedule.goal import Goal
from heterps.schedule.methods.bounding import Interval
from heterps.schedule.methods.exact import Exact
from heterps.schedule.methods.reach import EFFORT
from heterps.schedule.objective import ClosedForm
from heterps.schedule.problem import Problem
from heterps.schedule.provision import fewest_units, memory_units, whole_units
from heterps.schedule.search import Outcome, Settings, search
from heterps.units import GIGA, MILLION, format_rate, format_share, format_usd

SECONDS = 5.0
"""Spent on each question: the answer is then the best found, if not proved."""

NO_MONEY_LIMIT_USD = 1e30

BEYOND = 1 + 1e-6
"""How much more than the highest throughput is looked at to see what stops it."""

NEXT_TO_NOTHING = 1e-9
"""Dollars an hour for a unit of the other types where the units of one are counted."""


def explain_infeasible(problem: Problem) -> Infeasible:
    """The error for a problem without a feasible plan."""
    goal = problem.goal
    free = _as_fast_as_possible(goal)
    highest = _solve(problem.with_goal(free))
    if highest.placement is None:
        return Infeasible(
            f"no plan fits at any throughput; the highest reachable one is 0. What stops it: {_nothing_fits(problem)}"
        )
    if goal.fastest:
        cheapest = replace(free, samples=None, budget_usd=None, min_throughput=0.0)
        found = _solve(problem.with_goal(cheapest)).value
        assert goal.samples is not None
        assert goal.budget_usd is not None
        return Infeasible(
            f"no plan trains {goal.samples:,.0f} samples for {format_usd(goal.budget_usd)}: the cheapest one costs "
            f"{format_usd(found * goal.samples)} ({format_usd(found * MILLION)} a million samples); raise --budget-usd"
        )
    reachable = 1 / highest.value
    close = (
        "" if highest.proved >= highest.value * (1 - 1e-6) else f" (proved: at most {format_rate(1 / highest.proved)})"
    )
    return Infeasible(
        f"no plan reaches {format_rate(goal.throughput_floor)}: the highest reachable throughput is "
        f"{_exactly(reachable)} samples/s{close}. {what_stops(problem, highest.placement, reachable)}"
    )


def why_not_alone(problem: Problem, name: str) -> str:
    """Why a plan with every layer on one type misses a throughput that other plans reach, in a sentence or two."""
    lacking = [layer.name for layer in problem.profile.layers if name not in layer.costs]
    if lacking:
        return f"{name} alone cannot run layer {lacking[0]!r}, for which the profile has no costs on it."
    placement = problem.encode([name] * problem.layers)[0]
    highest = ClosedForm(problem.with_goal(_as_fast_as_possible(problem.goal))).provision(placement)
    if highest is None:
        return f"{name} alone has no room for all layers at any throughput."
    return (
        f"The highest throughput that {name} alone reaches is {_exactly(highest.throughput)} samples/s. "
        f"{what_stops(problem, placement, highest.throughput)}"
    )


def what_stops(problem: Problem, placement: NDArray[np.int32], throughput: float) -> str:
    """What keeps a placement from running faster than a throughput, and the remedy, in two sentences.

    That is limits, money or serial parts; where a pipeline drains, also what that takes.
    """
    stages = stage_times(problem.profile, problem.cluster, problem.decode(placement))
    fill = problem.goal.fill(len(stages))
    seconds = fill / throughput / BEYOND
    units = [fewest_units(problem.cluster, stage, seconds) for stage in stages]
    serial = [_serial(problem, stage, fill) for stage, k in zip(stages, units, strict=True) if math.isinf(k)]
    limits, rate = _beyond_limits(problem, stages, units, seconds)
    reasons, remedies = [*serial, *limits], ["lower the goal"]
    if limits:
        remedies.append("raise that limit")
    if rate > problem.max_rate:
        reasons.append(
            f"--max-usd-per-hour {problem.max_rate:g} (any more throughput costs {format_usd(rate)} an hour)"
        )
        remedies.append("raise --max-usd-per-hour")
    if fill < 1:
        reasons.append(
            f"mode sync, where {len(stages)} stages with micro_batches {problem.goal.micro_batches} keep "
            f"{format_share(fill)} of the throughput"
        )
        remedies.append("raise --micro-batches")
    where = ", ".join(f"{_layers(problem, stage)} on {stage.type}" for stage in stages)
    stops = "; ".join(reasons) or "the limits together"
    return f"What stops it, with {where}: {stops}. {' or '.join(remedies).capitalize()}."


def _as_fast_as_possible(goal: Goal) -> Goal:
    """The highest throughput instead of the goal's, whatever a sample costs; what may be spent an hour stays."""
    return Goal(samples=1.0, budget_usd=NO_MONEY_LIMIT_USD, max_usd_per_hour=goal.max_usd_per_hour, mode=goal.mode,
                micro_batches=goal.micro_batches)  # fmt: skip


def _solve(problem: Problem) -> Outcome:
    objective = ClosedForm(problem)
    return search(objective, Exact(objective, Settings(seconds=SECONDS)))


def _serial(problem: Problem, stage: StageTime, fill: float) -> str:
    """What a stage's serial part allows of a pipeline that keeps the share `fill` of its throughput."""
    part = "alpha" if stage.serial_s >= stage.sync_serial_s else "beta"
    most = fill / max(stage.serial_s, stage.sync_serial_s)
    return (
        f"the serial fraction (1 - {part}) of {_layers(problem, stage)} on {stage.type} allows no more than "
        f"{format_rate(most)} with any number of units"
    )


def _beyond_limits(
    problem: Problem, stages: Sequence[StageTime], units: Sequence[float], seconds: float
) -> tuple[list[str], float]:
    """The limits that units break, with who needs them, and the dollars an hour; infinite units are left out.

    The server's units follow from the seconds a sample.
    """
    cluster = problem.cluster
    uses: dict[str, list[tuple[int, str]]] = {name: [] for name in problem.names}
    for stage, k in zip(stages, units, strict=True):
        if math.isfinite(k):
            what = "for the state of" if k == memory_units(cluster, stage) > 1 else "for"
            uses[stage.type].append((whole_units(k), f"{what} {_layers(problem, stage)}"))
    work = sum(stage.server_s for stage in stages)
    if cluster.parameter_server is not None and work > 0:
        uses[cluster.parameter_server].append((max(1, whole_units(work / seconds)), "for the parameter server"))
    reasons, rate = [], 0.0
    for name, parts in uses.items():
        kind, count = cluster.types[name], sum(k for k, _ in parts)
        rate += count * kind.price_per_hour
        if kind.limit is not None and count > kind.limit:
            each = ": " + ", ".join(f"{k} {what}" for k, what in parts) if len(parts) > 1 else ""
            reasons.append(f"the limit of {kind.limit} units of {name} (any more throughput needs {count}{each})")
    return reasons, rate


def _nothing_fits(problem: Problem) -> str:
    """Why no units of any placement keep the constraints, not even slowly, and the remedy, in two sentences."""
    if reasons := _layers_without_room(problem):
        return f"{'; '.join(reasons[:3])}. Raise limit or memory_gb, or add a type with more memory."
    at_any_price = problem.with_goal(replace(problem.goal, max_usd_per_hour=None))
    least = _least_usd_per_hour(at_any_price)
    if math.isfinite(least) and math.isfinite(problem.max_rate):
        return (
            f"--max-usd-per-hour is {problem.max_rate:g}, and the plan that costs least an hour takes "
            f"{format_usd(least)}. Raise --max-usd-per-hour."
        )
    limits = {name: kind.limit for name, kind in problem.cluster.types.items() if kind.limit is not None}
    needed = {name: _least_units_of(at_any_price, name) for name in limits}
    if enough := [name for name, units in needed.items() if math.isfinite(units)]:
        short = "; ".join(
            f"{needed[name]:.0f} units of {name} would do, the limit is {limits[name]}" for name in enough
        )
        return f"{short}. Raise {'that limit' if len(enough) == 1 else 'one of these limits'}."
    total = _gb(float(problem.replicated.sum() + problem.sharded.sum()))
    return (
        f"limit and memory_gb of the types have no room for all layers, with {total} of state. Raise several of them."
    )


def _layers_without_room(problem: Problem) -> list[str]:
    """Layers whose state alone is more than any type that runs them can hold, with what there is."""
    reasons = []
    for i, layer in enumerate(problem.profile.layers):
        room = np.where(problem.runnable[i], problem.memory * (problem.limit if layer.sharded else 1.0), 0.0)
        if layer.state_bytes > room.max() * (1 + 1e-9):
            there = [(problem.names[t], problem.limit[t], _gb(room[t])) for t in np.flatnonzero(room)]
            if layer.sharded:
                keeps = "shared by its units; " + ", ".join(f"{n:.0f} units of {name} hold {x}" for name, n, x in there)
            else:
                keeps = "on every unit; " + ", ".join(f"a unit of {name} holds {x}" for name, _, x in there)
            reasons.append(f"layer {layer.name!r} has {_gb(layer.state_bytes)} of state {keeps}")
    return reasons


def _least_usd_per_hour(problem: Problem) -> float:
    """Dollars an hour that the slowest plans cost, which take least; infinite if limits and memory allow none."""
    graph = Graph(problem.tables)
    low = graph.floor()
    return low * Interval(low, low, 0, graph, np.zeros(problem.types + 1)).branch(math.inf, EFFORT).bound


def _least_units_of(problem: Problem, name: str) -> float:
    """Units of a type, had it no limit, without which no plan fits the other limits; infinite if none does anyhow.

    They are counted as the money of a cluster in which only this type costs anything to speak of.
    """
    types = {
        other: kind.model_copy(update={"price_per_hour": 1.0, "limit": None} if other == name
                               else {"price_per_hour": NEXT_TO_NOTHING})
        for other, kind in problem.cluster.types.items()
    }  # fmt: skip
    cluster = problem.cluster.model_copy(update={"types": FrozenDict(types)})
    units = _least_usd_per_hour(Problem(problem.profile, cluster, problem.goal))
    return float(round(units)) if math.isfinite(units) else math.inf


def _gb(size_bytes: float) -> str:
    return f"{size_bytes / GIGA:,.4g} GB"


def _layers(problem: Problem, stage: StageTime) -> str:
    layers = problem.profile.layers
    first, last = layers[stage.first].name, layers[stage.last].name
    return f"layer {first!r}" if first == last else f"layers {first!r}..{last!r}"


def _exactly(throughput: float) -> str:
    """Rounded down to a digit that can be asked for: the first decimal, or below 10 the sixth digit."""
    if throughput >= 10:
        return f"{math.floor(throughput * 10) / 10:.1f}"
    return str(Context(prec=6, rounding=ROUND_DOWN).create_decimal_from_float(throughput))
