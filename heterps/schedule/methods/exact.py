"""`exact`: branch and bound over throughput, with a proved lower bound.

With the units that a throughput t asks for, the dollars an hour of the cheapest placement are a staircase in t. So no
plan with a throughput in [low, high] costs less a sample than rate(low)/high, nor less than fractional units would at
low. Intervals are split, cheapest bound first, until no bound lies below the best plan by more than `GAP`. Pipelines
that drain (mode sync) lose a factor that depends on the number of stages, so they are searched stage count by count.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np

from heterps._native import Graph
from heterps.errors import InvalidInput
from heterps.schedule.methods.bounding import Bounded, Interval, tighten
from heterps.schedule.methods.reach import Unproved, within_reach
from heterps.schedule.objective import Objective, Scores
from heterps.schedule.problem import Placements, Problem
from heterps.schedule.search import Settings
from heterps.units import SECONDS_PER_HOUR

GAP = 5e-7
"""Relative gap at which an interval is closed: half of what a plan may have to be called optimal."""

NEXT_STEP = 1 + 2e-9
"""Where the next step of the staircase starts, relative to the end of one: just past the slack of unit counts."""

UNBOUNDED = 2.0**60


class Exact:
    """Finds the optimum and proves it; `proved` is in the objective's unit (dollars or seconds a sample)."""

    def __init__(self, objective: Objective, settings: Settings) -> None:
        if not objective.closed_form:
            raise InvalidInput("method exact needs the closed-form objective; use rl for a simulated or measured one")
        self.problem: Problem = objective.problem
        self.proved = 0.0
        self._best = math.inf
        self._seen: set[bytes] = set()
        self._deadline = time.perf_counter() + settings.seconds
        self._steps = self._fastest() if self.problem.goal.fastest else self._cheapest()

    def propose(self) -> Placements:
        """What an interval's bound suggests; empty when all intervals are closed."""
        for step in self._steps:
            key = step.tobytes()
            if key not in self._seen:
                self._seen.add(key)
                return step[None, :]
        return np.empty((0, self.problem.layers), dtype=np.int32)

    def feedback(self, placements: Placements, scores: Scores) -> None:
        """Keeps the best value, which closes intervals."""
        self._best = min(self._best, float(scores.value.min()))

    @property
    def cutoff(self) -> float:
        """Only better placements matter."""
        return math.inf if self.problem.goal.fastest else self._best

    def _cutoff(self) -> float:
        return self._best * SECONDS_PER_HOUR * (1 - GAP)

    def _late(self) -> bool:
        return time.perf_counter() > self._deadline

    def _stage_counts(self) -> list[int]:
        return [0] if self.problem.goal.mode == "async" else list(range(1, self.problem.layers + 1))

    def _fill(self, stages: int) -> float:
        return self.problem.goal.fill(stages) if stages else 1.0

    def _cheapest(self) -> Iterator[Placements]:
        """Splits the interval with the least bound until none is below the best cost. Money is dollars an hour."""
        graph = Graph(self.problem.tables)
        prices = np.zeros(self.problem.types + 1)
        floor = self.problem.goal.throughput_floor or graph.floor() * min(map(self._fill, self._stage_counts()))
        closed = math.inf
        order = itertools.count()
        heap: list[tuple[float, int, Interval]] = []
        counts = iter(self._stage_counts())
        next_stages, next_bound = next(counts), 0.0
        while heap or next_bound < math.inf:
            cutoff = self._cutoff()
            if next_bound <= (heap[0][0] if heap else math.inf):
                # More stages only lose throughput, so their bound opens later intervals only when it is the least.
                if next_bound >= cutoff:
                    closed, next_bound = min(closed, next_bound), math.inf
                    continue
                interval = Interval(floor / self._fill(next_stages), math.inf, next_stages, graph, prices)
                possible = True
                if self._best == math.inf:
                    with suppress(Unproved):
                        placement = within_reach(self.problem, interval)
                        possible = placement is not None
                        if placement is not None:
                            yield placement
                if possible:
                    heapq.heappush(heap, (next_bound, next(order), interval))
                stages = next(counts, None)
                if stages is None:
                    next_bound = math.inf
                else:
                    fill = self._fill(stages)
                    any_count = Interval(floor / fill, math.inf, 0, graph, prices).relax()
                    next_stages, next_bound = stages, any_count.bound / fill
                continue
            bound, _, interval = heapq.heappop(heap)
            fill = self._fill(interval.stages)
            if bound >= cutoff or self._late():
                closed = min(closed, bound)
                continue
            result: Bounded | None = None
            for step in tighten(self.problem, interval, lambda: self._cutoff() * fill):  # noqa: B023
                if isinstance(step, Bounded):
                    result = step
                else:
                    yield step
            assert result is not None
            cutoff = self._cutoff()
            bound = max(bound, result.bound / fill)
            # What was proved up to the cutoff times `fill` may fall short of the cutoff by a rounding.
            proved = bound >= cutoff or result.bound >= cutoff * fill
            if proved or interval.high <= interval.low * NEXT_STEP:
                closed = min(closed, bound)
                continue
            for part in _split(result.interval.narrowed(cutoff * fill), result):
                heapq.heappush(heap, (bound, next(order), part))
        # Stages of plans that cost the cutoff or more were dropped, so nothing is proved above it.
        self.proved = min(closed, self._cutoff()) / SECONDS_PER_HOUR

    def _fastest(self) -> Iterator[Placements]:
        """The highest throughput that limits allow; if that costs too much, the intervals below it are split, the one
        that reaches highest first, until none reaches above the best throughput.
        """  # noqa: D205
        graph = Graph(self.problem.tables)
        prices = np.zeros(self.problem.types + 1)
        allowed = self.problem.goal.max_usd_per_sample * SECONDS_PER_HOUR * (1 + 1e-9)
        ceiling = 0.0
        for stages in self._stage_counts():
            fill = self._fill(stages)
            start = graph.floor() if self._best == math.inf else NEXT_STEP / (self._best * fill)
            whole = Interval(start, math.inf, stages, graph, prices)
            if replace(whole, stages=0).relax().bound >= allowed * fill:
                break  # not even with any number of stages; and more stages only fill the pipeline worse
            top = yield from self._highest(whole, fill)
            if self._best == 0 or (top == math.inf and allowed >= UNBOUNDED):
                self._best = 0.0
                return
            heap = [(-top, 0, replace(whole, high=top))] if top > start else []
            order = itertools.count(1)
            while heap:
                _, _, interval = heapq.heappop(heap)
                if interval.high * fill * self._best <= 1 + GAP or self._late():
                    ceiling = max(ceiling, interval.high * fill)
                    continue
                if interval.low >= UNBOUNDED * start:
                    self._best = 0.0
                    return
                result: Bounded | None = None
                for step in tighten(self.problem, interval, lambda: allowed * fill):  # noqa: B023
                    if isinstance(step, Bounded):
                        result = step
                    else:
                        yield step
                assert result is not None
                if result.bound >= allowed * fill:
                    continue
                parts = _split_high(result.interval, 1 / (self._best * fill))
                ceiling = max(ceiling, 0.0 if parts else interval.high * fill)
                for part in parts:
                    heapq.heappush(heap, (-part.high, next(order), part))
        self.proved = min(1 / ceiling, self._best) if ceiling > 0 else self._best

    def _highest(self, interval: Interval, fill: float) -> Generator[Placements, None, float]:
        """Bisects to the highest steady throughput that limits allow, whatever it costs; 0 if not even `low` is.

        What it yields is scored on the way. Throughputs of which nothing could be proved count as allowed.
        """
        low, high, allowed, doubtful = interval.low, math.inf, 0.0, 0.0
        at = low
        while at < UNBOUNDED * interval.low:
            if self._late():
                return high
            try:
                placement = within_reach(self.problem, replace(interval, low=at))
            except Unproved:
                placement, doubtful = None, max(doubtful, high)
            if placement is None:
                high = at
            else:
                yield placement
                if self._best == 0:
                    return math.inf
                low = allowed = max(at, min(high, NEXT_STEP / (self._best * fill)))
            if high <= max(low, allowed) * (1 + GAP / 4) or (allowed == 0.0 and high <= interval.low):
                return max(allowed and high, doubtful)
            at = 2 * low if math.isinf(high) else math.sqrt(low * high)
        return math.inf


def _split(interval: Interval, result: Bounded) -> tuple[Interval, Interval]:
    """Where the cheapest path's step ends, if that is not near an end; else in the middle, on a logarithmic scale."""
    low, high = interval.low, interval.high
    if math.isinf(high):
        return replace(interval, high=2 * low), replace(interval, low=2 * low)
    at = result.reached
    share = math.log(at / low) / math.log(high / low) if low < at < high else 0.0
    narrow = high <= low * (1 + (1e-4 if result.solved else 1e-6))
    if not (0.02 < share < 0.98 or (narrow and share > 0)):
        at = math.sqrt(low * high)
    return replace(interval, high=at), replace(interval, low=min(at * NEXT_STEP, high))


def _split_high(interval: Interval, target: float) -> tuple[Interval, ...]:
    """Drops what lies below the target throughput, else halves."""
    low, high = interval.low, interval.high
    if low < target < high:
        return (replace(interval, low=target * NEXT_STEP),)
    if math.isinf(high):
        return replace(interval, high=2 * low), replace(interval, low=2 * low)
    if high <= low * (1 + 1e-8):
        return ()
    at = math.sqrt(low * high)
    return replace(interval, high=at), replace(interval, low=at)
