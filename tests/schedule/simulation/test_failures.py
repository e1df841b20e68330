"""Failures: by hand where nothing is random, on average against the formula, and what they leave out of a run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from heterps.schedule.simulation import Conditions, expected_share, run_with_failures, simulate_units
from tests.schedule.simulation.problems import chain


def test_without_failures_only_checkpoints_cost() -> None:
    conditions = Conditions(checkpoint_every_s=900, checkpoint_s=100, hours=10)
    got = run_with_failures(conditions, 1000)
    assert got.count == 0
    assert got.share == pytest.approx(0.9)
    assert got.checkpoint_s == pytest.approx(3600)
    assert expected_share(conditions, 1000) == pytest.approx(0.9)


@pytest.mark.parametrize(("units", "rate"), [(100, 1e-3), (1000, 1e-3), (1000, 1e-2)])
def test_long_runs_come_to_the_expected_share(units: int, rate: float) -> None:
    conditions = Conditions(failures_per_unit_hour=rate, checkpoint_s=20, hours=200_000 / (units * rate))
    got = run_with_failures(conditions, units)
    assert got.share == pytest.approx(expected_share(conditions, units), rel=0.01)
    spent = got.share * got.hours * 3600 + got.lost_s + got.restart_s + got.checkpoint_s
    assert spent == pytest.approx(got.hours * 3600, rel=1e-9)
    up = got.hours * 3600 - got.restart_s
    assert got.count == pytest.approx(up * units * rate / 3600, rel=0.02)


def test_runs_step_by_step_come_to_the_expected_share() -> None:
    """The formula against a run of single seconds, each of which may fail."""
    conditions = Conditions(failures_per_unit_hour=0.36, checkpoint_every_s=50, restart_s=30)
    rng = np.random.default_rng(0)
    fails = rng.random(2_000_000) < 10 * 0.36 / 3600
    now = kept = since = 0
    while now < len(fails):
        if fails[now]:
            now, since = now + 30, 0
            continue
        now, since = now + 1, since + 1
        if since == 50:
            kept, since = kept + 50, 0
    assert expected_share(conditions, 10) == pytest.approx(kept / len(fails), rel=0.02)


def test_the_same_seed_draws_the_same_failures() -> None:
    first, again, other = (
        run_with_failures(Conditions(failures_per_unit_hour=0.01, seed=seed), 100) for seed in (0, 0, 1)
    )
    assert first == again != other


def test_more_failures_than_training_leave_nothing() -> None:
    conditions = Conditions(failures_per_unit_hour=1e3)
    assert expected_share(conditions, 10_000) == 0
    problem = chain((0.8, 0.0))
    got = simulate_units(problem, ("t0",), [1000], 0, Conditions(failures_per_unit_hour=1e3))
    assert got.throughput == 0
    assert math.isinf(got.usd_per_million_samples)


def test_throughput_and_money_include_failures() -> None:
    problem = chain((0.8, 0.0))
    conditions = Conditions(failures_per_unit_hour=0.01)
    got = simulate_units(problem, ("t0",), [100], 0, conditions)
    assert got.failures is not None
    assert got.running_throughput == pytest.approx(1000, rel=0.01)
    assert got.throughput == pytest.approx(got.running_throughput * got.failures.share)
    assert got.usd_per_hour == 100
    assert got.usd_per_million_samples == pytest.approx(100 / 3600 / got.throughput * 1e6)
