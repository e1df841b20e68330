r"""Units for a fixed placement: the exact optimum, the paper's method, and static ratios as a baseline.

The paper balances the stages: all take the same time x a sample, which fixes their units k(x) in closed form, and the
cost x * sum price * k(x) is minimised over x. With k(x) = max(least, P/(x - S), DP/(x - DS)) each term is convex in x,
so Newton's method on the derivative finds the minimum; then units are rounded up. Units fall as x grows, so a limit
that the rounded units break only asks for a larger x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterps.errors import InvalidInput
from heterps.plan import Cluster
from heterps.schedule.cost import StageTime, evaluate, stage_times, violations
from heterps.schedule.objective import ClosedForm, Provisioning
from heterps.schedule.problem import Problem
from heterps.units import GIGA

NEWTON_STEPS = 60

SLACK = 1e-9
"""Units are rounded up, and a throughput missed, only past this relative slack, as in the native core."""


def provision_exact(problem: Problem, placement: Sequence[str]) -> Provisioning | None:
    """The exactly optimal whole units, or None if no units make the placement feasible."""
    return ClosedForm(problem).provision(problem.encode(placement)[0])


def provision_newton(problem: Problem, placement: Sequence[str]) -> Provisioning | None:
    """The paper's method: balanced stages, the continuous optimum by Newton's method, units rounded up.

    Where these break a limit or the money, the stages are slowed down until they fit; None if they do not even at the
    throughput asked for.
    """
    stages = stage_times(problem.profile, problem.cluster, placement)

    def balanced(seconds: float) -> Provisioning | None:
        needed = [fewest_units(problem.cluster, stage, seconds) for stage in stages]
        return None if math.inf in needed else _checked(problem, placement, stages, [*map(whole_units, needed)])

    slowest = _slowest_s(problem, stages)
    made = balanced(slowest)
    if made is None and not problem.goal.fastest:  # the fewest units may cost more a sample than a budget allows
        return None
    low, high = _balanced_s(problem, stages, slowest), slowest
    if (found := balanced(low)) is not None:
        return found
    while made is not None and high - low > SLACK * high:
        middle = 0.5 * (low + high)
        if (found := balanced(middle)) is None:
            low = middle
        else:
            high, made = middle, found
    return made


def provision_ratio(problem: Problem, placement: Sequence[str], ratio: str) -> Provisioning | None:
    """A static ratio of accelerators to CPU cores, such as `1:8`: the least multiple that reaches the throughput.

    Every accelerator stage gets n times the first number, every CPU stage n times the second; None if no n will do.
    """
    accelerators, cpus = _parse_ratio(ratio)
    cluster = problem.cluster
    stages = stage_times(problem.profile, cluster, placement)
    shares = [cpus if cluster.types[stage.type].device == "cpu" else accelerators for stage in stages]
    slowest = _slowest_s(problem, stages)
    multiple = max(fewest_units(cluster, s, slowest) / share for s, share in zip(stages, shares, strict=True))
    if math.isinf(multiple):
        return None
    # Fewer are too slow or short of memory, and more only use more of every limit.
    n = max(1, whole_units(multiple))
    return _checked(problem, placement, stages, [n * share for share in shares])


def fewest_units(cluster: Cluster, stage: StageTime, seconds: float) -> float:
    """Units, 1 or more and fractional, with which a stage fits memory and takes at most so many seconds a sample.

    Infinite if no number of units does.
    """
    return max(
        memory_units(cluster, stage),
        _units_within(stage.serial_s, stage.parallel_s, seconds),
        _units_within(stage.sync_serial_s, stage.sync_parallel_s, seconds),
    )


def memory_units(cluster: Cluster, stage: StageTime) -> float:
    """Units, 1 or more and fractional, whose memory holds a stage's state; infinite if no number of units does."""
    memory = cluster.types[stage.type].memory_gb
    if memory is None:
        return 1.0
    room = memory * GIGA - stage.replicated_bytes
    if room < -SLACK * memory * GIGA or (room <= 0 and stage.sharded_bytes > 0):
        return math.inf
    return max(1.0, stage.sharded_bytes / room) if stage.sharded_bytes else 1.0


def whole_units(units: float) -> int:
    """Finite units, rounded up past the slack."""
    return math.ceil(units * (1 - SLACK))


def _units_within(serial_s: float, parallel_s: float, seconds: float) -> float:
    """Units k with serial + parallel/k <= seconds."""
    if parallel_s == 0:
        return 0.0 if serial_s <= seconds * (1 + SLACK) else math.inf
    return parallel_s / (seconds - serial_s) if seconds > serial_s else math.inf


def _slowest_s(problem: Problem, stages: Sequence[StageTime]) -> float:
    """Seconds a sample that stages may take: by the goal, or what the fewest units take if any throughput will do."""
    floor = problem.goal.throughput_floor
    if floor > 0:
        return problem.goal.fill(len(stages)) / floor
    one_server_s = sum(stage.server_s for stage in stages)
    return max(one_server_s, *(stage.seconds(memory_units(problem.cluster, stage)) for stage in stages))


def _balanced_s(problem: Problem, stages: Sequence[StageTime], slowest: float) -> float:
    """The seconds a sample, at most the slowest, at which balanced stages cost least; limits are left aside."""
    prices = [problem.cluster.types[stage.type].price_per_hour for stage in stages]
    least = [memory_units(problem.cluster, stage) for stage in stages]

    def slope(x: float) -> tuple[float, float]:
        """First and second derivative of the cost; the larger of each stage's branches counts."""
        first = second = 0.0
        for stage, price, k in zip(stages, prices, least, strict=True):
            branches = [(k, 0.0, 0.0)]
            for s, p in ((stage.serial_s, stage.parallel_s), (stage.sync_serial_s, stage.sync_parallel_s)):
                branches.append((_units_within(s, p, x), s, p))
            _, s, p = max(branches)
            first += price * (k if p == 0 else -p * s / (x - s) ** 2)
            second += price * (0.0 if p == 0 else 2 * p * s / (x - s) ** 3)
        return first, second

    low, high = max(max(stage.serial_s, stage.sync_serial_s) for stage in stages), slowest
    x = high
    for _ in range(NEWTON_STEPS):
        first, second = slope(x)
        # A flat cost (nothing serial, no stage idle) counts as falling: of equal optima the slowest has fewest units.
        low, high = (x, high) if first <= 0 else (low, x)
        step = x - first / second if second > 0 else math.inf
        # A step that leaves the bracket (the cost is only piecewise smooth) gives way to bisection.
        x, last = (step if low < step < high else 0.5 * (low + high)), x
        if abs(x - last) <= 1e-12 * x:
            break
    return min(x, slowest)


def _checked(
    problem: Problem, placement: Sequence[str], stages: list[StageTime], units: list[int]
) -> Provisioning | None:
    """The units with as much server as they can use, or else as the goal needs, if they keep every constraint."""
    period = max(stage.seconds(k) for stage, k in zip(stages, units, strict=True))
    work = sum(stage.server_s for stage in stages)
    for seconds in (period, max(period, _slowest_s(problem, stages))):
        server = max(1, whole_units(work / seconds)) if work > 0 else 0
        if violations(problem.cluster, stages, units, server):
            continue
        got = evaluate(problem.profile, problem.cluster, placement, units, server, goal=problem.goal)
        too_slow = got.throughput < problem.goal.throughput_floor * (1 - SLACK)
        too_dear = got.usd_per_sample > problem.goal.max_usd_per_sample * (1 + SLACK)
        if not too_slow and not too_dear and got.usd_per_hour <= problem.max_rate * (1 + SLACK):
            return Provisioning(tuple(units), server, got.throughput, got.usd_per_sample)
    return None


def _parse_ratio(ratio: str) -> tuple[int, int]:
    parts = ratio.split(":")
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidInput(f"ratio is {ratio!r}; write accelerators:cores, such as 1:8")
    return int(parts[0]), int(parts[1])
