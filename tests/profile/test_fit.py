"""Terms of the cost model from measured times."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.profile.fit import Scaling, fit_overhead, fit_scaling

seconds = st.floats(1e-7, 1e3)
unit_sets = st.sets(st.integers(1, 512), min_size=2, max_size=6)


@given(whole=seconds, alpha=st.floats(0, 1), units=unit_sets)
def test_exact_times_give_back_the_terms(whole: float, alpha: float, units: set[int]) -> None:
    exact = Scaling(whole, alpha)
    # as alpha nears 1, times at many units alone say ever less of the part that is serial
    fitted = fit_scaling({k: exact.at(k) for k in units | {1}})
    assert fitted.seconds == pytest.approx(whole, rel=1e-6)
    assert fitted.alpha == pytest.approx(alpha, abs=1e-6)


@given(whole=seconds, alpha=st.floats(0, 1), units=unit_sets)
def test_exact_times_are_met_whatever_units_were_measured(whole: float, alpha: float, units: set[int]) -> None:
    exact = Scaling(whole, alpha)
    fitted = fit_scaling({k: exact.at(k) for k in units})
    assert [fitted.at(k) for k in units] == pytest.approx([exact.at(k) for k in units], rel=1e-6)


@given(times=st.dictionaries(st.integers(1, 512), st.just(0.0) | seconds, min_size=1, max_size=6))
def test_noise_gives_a_fraction_and_no_negative_time(times: dict[int, float]) -> None:
    fitted = fit_scaling(times)
    assert 0 <= fitted.alpha <= 1
    assert fitted.seconds >= 0


@given(units=st.integers(1, 512), time=seconds)
def test_one_unit_count_is_taken_as_parallel(units: int, time: float) -> None:
    fitted = fit_scaling({units: time})
    assert fitted.alpha == 1
    assert fitted.at(units) == pytest.approx(time)


def test_more_units_that_only_slow_down_are_serial() -> None:
    assert fit_scaling({1: 1.0, 2: 1.5, 4: 2.0}).alpha == 0


def test_more_than_linear_speed_up_is_all_parallel() -> None:
    assert fit_scaling({1: 1.0, 2: 0.4, 4: 0.1}).alpha == 1


def test_relative_errors_count() -> None:
    """Times of many units weigh as much as those of one, though they are short."""
    fitted = fit_scaling({1: 1.0, 64: 0.1})
    assert fitted.at(64) == pytest.approx(0.1)


@given(fixed=st.floats(0, 1), per_sample=st.floats(0, 1e-2), small=st.integers(1, 100), factor=st.integers(2, 16))
def test_a_line_through_two_batch_sizes(fixed: float, per_sample: float, small: int, factor: int) -> None:
    large = small * factor
    found = fit_overhead(small, fixed + per_sample * small, large, fixed + per_sample * large)
    assert found.fixed_s == pytest.approx(fixed, abs=1e-9)
    assert found.per_sample_s == pytest.approx(per_sample, abs=1e-9)


@given(small_s=st.floats(0, 10), large_s=st.floats(0, 10), small=st.integers(1, 64), more=st.integers(0, 64))
def test_neither_part_of_the_overhead_is_negative(small_s: float, large_s: float, small: int, more: int) -> None:
    found = fit_overhead(small, small_s, small + more, large_s)
    assert found.fixed_s >= 0
    assert found.per_sample_s >= 0
    assert found.fixed_s + found.per_sample_s * (small + more) == pytest.approx(large_s), "the real batch is met"


def test_one_batch_size_has_no_overhead() -> None:
    assert fit_overhead(8, 2.0, 8, 2.0).fixed_s == 0
