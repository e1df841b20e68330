r"""Failures, restarts and checkpoints: what share of the time trains.

Training goes on for `checkpoint_every_s` = T, then a checkpoint stops it for `checkpoint_s` = c. n units that each
fail at rate r fail together at rate f = n r, whatever happened before (exponential times between failures). A failure
throws training back to the last checkpoint and costs a restart of R seconds, during which nothing else fails. One
period of T is done after E seconds on average: it succeeds at once with probability e^(-f(T+c)), and otherwise the
time until the failure and the restart are spent and it begins anew, so that

    E = (e^(f (T + c)) - 1) (1/f + R),      share = T / E,      T / (T + c) without failures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from heterps.schedule.simulation.conditions import Conditions
from heterps.units import SECONDS_PER_HOUR

CHUNK = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """A run of `hours` with failures.

    `share` is the part of the time whose training was kept; the rest went into training that was lost, restarts and
    checkpoints (seconds of each).
    """

    count: int
    share: float
    lost_s: float
    restart_s: float
    checkpoint_s: float
    hours: float


def failure_rate(conditions: Conditions, units: int) -> float:
    """Failures a second of so many units."""
    return conditions.failures_per_unit_hour * units / SECONDS_PER_HOUR


def expected_share(conditions: Conditions, units: int) -> float:
    """The share of the time that trains, on average over long runs; 0 where a period practically never succeeds."""
    useful, period = conditions.checkpoint_every_s, conditions.checkpoint_every_s + conditions.checkpoint_s
    rate = failure_rate(conditions, units)
    if rate == 0:
        return useful / period
    if rate * period > 700:
        return 0.0
    return useful / (math.expm1(rate * period) * (1 / rate + conditions.restart_s))


def run_with_failures(conditions: Conditions, units: int) -> Failures:
    """One run of `conditions.hours`, drawn with the seed; at its end, what no checkpoint holds yet counts too."""
    end, rate = conditions.hours * SECONDS_PER_HOUR, failure_rate(conditions, units)
    useful, period = conditions.checkpoint_every_s, conditions.checkpoint_every_s + conditions.checkpoint_s
    rng = np.random.default_rng([conditions.seed, 0xFA11])
    now = kept = lost = restarting = saving = 0.0
    count = 0
    while now < end:
        drawn = rng.exponential(1 / rate, CHUNK) if rate > 0 else np.full(1, math.inf)
        starts = now + np.concatenate([[0.0], np.cumsum(drawn + conditions.restart_s)[:-1]])
        alive = starts < end
        starts, drawn = starts[alive], drawn[alive]
        ran = np.minimum(drawn, end - starts)
        failed = drawn < end - starts
        saved = np.floor(ran / period)
        rest = ran - saved * period
        kept += float((saved * useful + np.where(failed, 0.0, np.minimum(rest, useful))).sum())
        lost += float(np.minimum(rest, useful)[failed].sum())
        saving += float((saved * (period - useful) + np.maximum(rest - useful, 0.0)).sum())
        stops = starts + drawn
        restarting += float(np.minimum(conditions.restart_s, end - stops[failed]).sum())
        count += int(failed.sum())
        now = float(stops[-1] + conditions.restart_s) if bool(failed[-1]) else end
    return Failures(
        count=count, share=kept / end, lost_s=lost, restart_s=restarting, checkpoint_s=saving, hours=conditions.hours
    )
