"""Why a goal cannot be met: what is needed, what there is, and the nearest goal that works."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from heterps.errors import Infeasible
from heterps.schedule.cost import StageTime, stage_times
from heterps.schedule.goal import Goal
from heterps.schedule.methods.exact import Exact
from heterps.schedule.objective import ClosedForm
from heterps.schedule.problem import Problem
from heterps.schedule.search import Outcome, Settings, search
from heterps.units import GIGA, MILLION, format_rate, format_usd

SECONDS = 5.0
"""Spent on each question: the answer is then the best found, if not proved."""

NO_MONEY_LIMIT_USD = 1e30


def explain_infeasible(problem: Problem) -> Infeasible:
    """The error for a problem without a feasible plan."""
    goal = problem.goal
    free = Goal(samples=1.0, budget_usd=NO_MONEY_LIMIT_USD, max_usd_per_hour=goal.max_usd_per_hour, mode=goal.mode,
                micro_batches=goal.micro_batches)  # fmt: skip
    highest = _solve(problem.with_goal(free))
    if highest.placement is None:
        return Infeasible(_nothing_fits(problem))
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


def what_stops(problem: Problem, placement: NDArray[np.int32], throughput: float) -> str:
    """What keeps a placement from running faster than a throughput: limits, money or serial parts, in a sentence."""
    names = problem.decode(placement)
    stages = stage_times(problem.profile, problem.cluster, names)
    beyond = throughput / problem.goal.fill(len(stages)) * (1 + 1e-6)
    reasons, used, rate = [], dict.fromkeys(problem.names, 0.0), 0.0
    for stage in stages:
        serial_s = max(stage.serial_s, stage.sync_serial_s)
        if serial_s * beyond >= 1:
            part = "alpha" if stage.serial_s >= stage.sync_serial_s else "beta"
            reasons.append(
                f"the serial fraction (1 - {part}) of {_layers(problem, stage)} on {stage.type} allows no more than "
                f"{format_rate(1 / serial_s)} with any number of units"
            )
            continue
        units = math.ceil(_units(stage, 1 / beyond) * (1 - 1e-9))
        used[stage.type] += units
        rate += units * problem.cluster.types[stage.type].price_per_hour
    work = sum(stage.server_s for stage in stages)
    if problem.cluster.parameter_server is not None and work > 0:
        used[problem.cluster.parameter_server] += math.ceil(work * beyond * (1 - 1e-9))
        rate += math.ceil(work * beyond) * problem.cluster.types[problem.cluster.parameter_server].price_per_hour
    for name, count in used.items():
        limit = problem.cluster.types[name].limit
        if limit is not None and count > limit:
            reasons.append(f"the limit of {limit} units of {name} (any more throughput needs {count:.0f})")
    if rate > problem.max_rate:
        reasons.append(
            f"--max-usd-per-hour {problem.max_rate:g} (any more throughput costs {format_usd(rate)} an hour)"
        )
    where = ", ".join(f"{_layers(problem, stage)} on {stage.type}" for stage in stages)
    stops = "; ".join(reasons) or "the limits together"
    return f"What stops it, with {where}: {stops}. Lower the goal or raise that limit."


def _solve(problem: Problem) -> Outcome:
    objective = ClosedForm(problem)
    return search(objective, Exact(objective, Settings(seconds=SECONDS)))


def _nothing_fits(problem: Problem) -> str:
    """No units of any placement keep the constraints, not even slowly."""
    reasons = []
    for i, layer in enumerate(problem.profile.layers):
        room = max(problem.memory[t] for t in range(problem.types) if problem.runnable[i, t])
        if not layer.sharded and layer.state_bytes > room:
            reasons.append(
                f"layer {layer.name!r} keeps {layer.state_bytes / GIGA:.3g} GB on every unit, the largest memory that "
                f"can run it has {room / GIGA:.3g} GB (memory_gb)"
            )
    if problem.goal.max_usd_per_hour is not None:
        reasons.append(f"--max-usd-per-hour is {problem.goal.max_usd_per_hour:g}")
    reasons.append("limit and memory_gb of the types leave no room")
    return f"no plan fits at any throughput; the highest reachable one is 0. What stops it: {'; '.join(reasons)}."


def _layers(problem: Problem, stage: StageTime) -> str:
    layers = problem.profile.layers
    first, last = layers[stage.first].name, layers[stage.last].name
    return f"layer {first!r}" if first == last else f"layers {first!r}..{last!r}"


def _units(stage: StageTime, seconds: float) -> float:
    compute = stage.parallel_s / (seconds - stage.serial_s) if stage.parallel_s else 1.0
    sync = stage.sync_parallel_s / (seconds - stage.sync_serial_s) if stage.sync_parallel_s else 1.0
    return max(1.0, compute, sync)


def _exactly(throughput: float) -> str:
    """Rounded down to a digit that can be asked for."""
    return f"{math.floor(throughput * 10) / 10:.1f}" if throughput >= 10 else f"{throughput * (1 - 1e-6):.6g}"
