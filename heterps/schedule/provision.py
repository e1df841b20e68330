r"""Units for a fixed placement: the exact optimum, the paper's method, and static ratios as a baseline.

The paper balances the stages: all take the same time x a sample, which fixes their units k(x) in closed form, and the
cost x * sum price * k(x) is minimised over x. With k(x) = max(least, P/(x - S), DP/(x - DS)) each term is convex in x,
so Newton's method on the derivative finds the minimum; then units are rounded up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterps.errors import InvalidInput
from heterps.schedule.cost import StageTime, evaluate, stage_times, violations
from heterps.schedule.objective import ClosedForm, Provisioning
from heterps.schedule.problem import Problem
from heterps.units import GIGA

NEWTON_STEPS = 60


def provision_exact(problem: Problem, placement: Sequence[str]) -> Provisioning | None:
    """The exactly optimal whole units, or None if no units make the placement feasible."""
    return ClosedForm(problem).provision(problem.encode(placement)[0])


def provision_newton(problem: Problem, placement: Sequence[str]) -> Provisioning | None:
    """The paper's method: balanced stages, the continuous optimum by Newton's method, units rounded up.

    None if the rounded units break a limit, miss the throughput or exceed the money.
    """
    stages = stage_times(problem.profile, problem.cluster, placement)
    prices = [problem.cluster.types[stage.type].price_per_hour for stage in stages]
    least = [_least_units(problem, stage) for stage in stages]
    fastest = max(max(stage.serial_s, stage.sync_serial_s) for stage in stages)
    floor = problem.goal.throughput_floor / problem.goal.fill(len(stages))
    slowest = 1 / floor if floor > 0 else max(s.seconds(k) for s, k in zip(stages, least, strict=True))
    if slowest <= fastest or not all(map(math.isfinite, least)):
        return None

    def slope(x: float) -> tuple[float, float]:
        """First and second derivative of the cost; the larger of each stage's branches counts."""
        first = second = 0.0
        for stage, price, k in zip(stages, prices, least, strict=True):
            branches = [(k, 0.0, 0.0)]
            for s, p in ((stage.serial_s, stage.parallel_s), (stage.sync_serial_s, stage.sync_parallel_s)):
                branches.append((p / (x - s), s, p))
            _, s, p = max(branches)
            first += price * (k if p == 0 else -p * s / (x - s) ** 2)
            second += price * (0.0 if p == 0 else 2 * p * s / (x - s) ** 3)
        return first, second

    low, high = fastest + (slowest - fastest) * 1e-9, slowest
    x = high
    for _ in range(NEWTON_STEPS):
        first, second = slope(x)
        low, high = (x, high) if first < 0 else (low, x)
        step = x - first / second if second > 0 else math.inf
        # A step that leaves the bracket (the cost is only piecewise smooth) gives way to bisection.
        x, last = (step if low < step < high else 0.5 * (low + high)), x
        if abs(x - last) <= 1e-12 * x:
            break
    units = [math.ceil(max(k, _units(stage, x)) * (1 - 1e-9)) for stage, k in zip(stages, least, strict=True)]
    return _checked(problem, placement, stages, units)


def provision_ratio(problem: Problem, placement: Sequence[str], ratio: str) -> Provisioning | None:
    """A static ratio of accelerators to CPU cores, such as `1:8`: the least multiple that reaches the throughput.

    Every accelerator stage gets n times the first number, every CPU stage n times the second; None if no n will do.
    """
    accelerators, cpus = _parse_ratio(ratio)
    stages = stage_times(problem.profile, problem.cluster, placement)
    share = [cpus if problem.cluster.types[stage.type].device == "cpu" else accelerators for stage in stages]
    n = 1
    while n <= 1 << 20:
        made = _checked(problem, placement, stages, [n * s for s in share])
        if made is not None:
            return made if n == 1 else _least_multiple(problem, placement, stages, share, n // 2, n)
        n *= 2
    return None


def _least_multiple(
    problem: Problem, placement: Sequence[str], stages: list[StageTime], share: list[int], low: int, high: int
) -> Provisioning | None:
    while high - low > 1:
        middle = (low + high) // 2
        enough = _checked(problem, placement, stages, [middle * s for s in share]) is not None
        low, high = (low, middle) if enough else (middle, high)
    return _checked(problem, placement, stages, [high * s for s in share])


def _checked(
    problem: Problem, placement: Sequence[str], stages: list[StageTime], units: list[int]
) -> Provisioning | None:
    """The units with as much server as they need, if they keep every constraint."""
    period = max(stage.seconds(k) for stage, k in zip(stages, units, strict=True))
    work = sum(stage.server_s for stage in stages)
    server = max(1, math.ceil(work / period * (1 - 1e-9))) if work > 0 else 0
    if violations(problem.cluster, stages, units, server):
        return None
    got = evaluate(problem.profile, problem.cluster, placement, units, server, goal=problem.goal)
    too_slow = got.throughput < problem.goal.throughput_floor * (1 - 1e-9)
    if too_slow or got.usd_per_hour > problem.max_rate * (1 + 1e-9):
        return None
    return Provisioning(tuple(units), server, got.throughput, got.usd_per_sample)


def _least_units(problem: Problem, stage: StageTime) -> float:
    memory = problem.cluster.types[stage.type].memory_gb
    if memory is None or stage.replicated_bytes + stage.sharded_bytes == 0:
        return 1.0
    room = memory * GIGA - stage.replicated_bytes
    if room < 0 or (room == 0 and stage.sharded_bytes > 0):
        return math.inf
    return max(1.0, stage.sharded_bytes / room if stage.sharded_bytes else 1.0)


def _units(stage: StageTime, seconds: float) -> float:
    return max(stage.parallel_s / (seconds - stage.serial_s), stage.sync_parallel_s / (seconds - stage.sync_serial_s))


def _parse_ratio(ratio: str) -> tuple[int, int]:
    parts = ratio.split(":")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidInput(f"ratio is {ratio!r}; write accelerators:cores, such as 1:8")
    return int(parts[0]), int(parts[1])
