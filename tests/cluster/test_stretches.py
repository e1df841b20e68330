"""How far replicas go at a call and beyond it: never past a step at which all have to stand still."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies

from heterps.runtime.cluster.stretches import FIRST_STEPS, STRETCH_S, Stretches

SOME = strategies.integers(1, 40)


@given(
    first=strategies.integers(0, 50), length=SOME, every=strategies.lists(SOME, max_size=3),
    halts=strategies.sets(strategies.integers(0, 60)), step_s=strategies.floats(1e-3, 10.0),
)  # fmt: skip
def test_every_stop_is_reached_and_stood_still_at(first, length, every, halts, step_s):
    steps = first + length
    stretches, step, still = Stretches(first, steps=steps, every=every), first, set()
    stops = {stop for one in every for stop in range(first + 1, steps) if stop % one == 0} | {steps}
    before, call = first, 0
    while step < steps:
        until, allowed = stretches.next(step, halt=call in halts)
        assert step < until <= allowed <= steps
        assert until == before or step == before, "a call ends where the one before allowed to go"
        assert not any(until < stop < allowed for stop in stops), "nobody goes past a stop unasked"
        if call in halts:
            assert allowed == until
        if allowed == until:
            still.add(until)
        stretches.took(until - step, (until - step) * step_s)
        step, before, call = until, allowed, call + 1
    assert stops <= still


@given(step_s=strategies.floats(1e-4, 1e4))
def test_stretches_grow_to_their_time(step_s):
    stretches, step, sizes = Stretches(0, steps=None), 0, []
    while sum(sizes) * step_s < 10 * STRETCH_S + 30 * step_s:
        until, _ = stretches.next(step)
        sizes.append(until - step)
        stretches.took(until - step, (until - step) * step_s)
        step = until
    assert sizes[0] == FIRST_STEPS
    assert all(later <= 2 * sooner for sooner, later in pairwise(sizes))
    assert STRETCH_S / 2 <= sizes[-1] * step_s <= STRETCH_S or sizes[-1] == 1


def test_what_took_no_time_or_had_no_steps_teaches_nothing():
    stretches = Stretches(0, steps=None)
    stretches.took(4, 0.0)
    stretches.took(0, 1.0)
    assert stretches.next(0) == (FIRST_STEPS, 2 * FIRST_STEPS)
