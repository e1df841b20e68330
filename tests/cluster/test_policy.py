"""From events to decisions."""

from __future__ import annotations

import pytest

from heterps.runtime.cluster.policy import (
    Died,
    Event,
    Frozen,
    GiveUp,
    Limits,
    Raised,
    Restart,
    Stalled,
    decide,
    describe,
)

LIMITS = Limits(tries=3, pause_s=1.0)
PASSING: list[Event] = [
    Died("shard 1", "killed"), Frozen("stage 0 replica 1", 20.0), Stalled(300.0),
    Raised("stage 0 replica 0", "gone", False),
]  # fmt: skip


@pytest.mark.parametrize("event", PASSING, ids=describe)
def test_what_may_pass_is_tried_again_and_then_given_up(event: Event):
    decisions = [decide(event, failures=number, limits=LIMITS) for number in range(1, 5)]
    assert decisions[:3] == [Restart(1.0), Restart(2.0), Restart(4.0)]
    assert isinstance(decisions[3], GiveUp)
    assert describe(event) in decisions[3].reason


def test_pauses_end_at_a_minute():
    assert decide(Stalled(1.0), failures=50, limits=Limits(tries=100, pause_s=1.0)) == Restart(60.0)


def test_what_would_come_again_is_given_up_at_once():
    assert decide(Raised("stage 0 replica 0", "bad labels", True), failures=1, limits=LIMITS) == GiveUp("bad labels")
