"""From events to decisions."""

from __future__ import annotations

import pytest

from heterps.runtime.cluster.policy import (
    Died,
    Event,
    Frozen,
    GiveUp,
    Lacking,
    Limits,
    Raised,
    Replan,
    Restart,
    Retry,
    Returned,
    Stalled,
    Straggler,
    Tell,
    decide,
    describe,
    find_stragglers,
    kind_of,
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


class TestRoom:
    """Of a cluster that does not hold the plan."""

    def lacks(self, waited_s: float, *, begun: bool, **limits: object) -> object:
        return decide(Lacking("CPU: 2", waited_s, begun), failures=0, limits=Limits(start_s=100.0, **limits))  # type: ignore[arg-type]

    def test_without_a_wait_it_is_refused_with_what_is_missing(self):
        refused = self.lacks(0.0, begun=False)
        assert isinstance(refused, GiveUp)
        assert "CPU: 2" in refused.reason

    def test_it_is_waited_for_and_then_refused(self):
        assert self.lacks(0.0, begun=False, wait_s=10.0) == Retry(1.0)
        assert self.lacks(9.5, begun=False, wait_s=10.0) == Retry(0.5)
        assert isinstance(self.lacks(10.0, begun=False, wait_s=10.0), GiveUp)

    def test_a_machine_that_is_lost_may_come_back(self):
        assert self.lacks(99.0, begun=True) == Retry(1.0)
        assert isinstance(self.lacks(100.0, begun=True), GiveUp)

    def test_an_elastic_run_goes_on_with_what_is_left(self):
        assert self.lacks(5.0, begun=True, elastic=True, wait_s=10.0) == Retry(1.0)
        assert self.lacks(10.0, begun=True, elastic=True, wait_s=10.0) == Replan()
        assert self.lacks(0.0, begun=False, elastic=True) == Replan()

    def test_machines_that_are_back_are_used(self):
        assert decide(Returned(), failures=3, limits=LIMITS) == Restart(0.0)


class TestStragglers:
    LIMITS = Limits(slow=1.5, slow_stretches=3)

    def test_a_replica_is_slow_against_the_median_of_its_stage(self):
        paces = {"a": [1.0, 1.1, 1.0], "b": [1.0, 0.9, 1.2], "c": [2.0, 1.9, 2.4]}
        assert find_stragglers(paces, limits=self.LIMITS) == {"c": pytest.approx(2.0)}

    def test_of_two_the_faster_one_is_the_measure(self):
        assert list(find_stragglers({"a": [1.0] * 3, "b": [1.6] * 3}, limits=self.LIMITS)) == ["b"]

    @pytest.mark.parametrize(
        "paces",
        [
            {"a": [9.0] * 3},  # alone
            {"a": [1.0] * 3, "b": [9.0, 9.0, 1.0]},  # it got better
            {"a": [1.0] * 3, "b": [1.0, 9.0, 9.0]},  # not for long
            {"a": [1.0] * 2, "b": [9.0] * 2},  # not known yet
            {"a": [9.0] * 3, "b": [9.1] * 3},  # all of them
            {"a": [0.0] * 3, "b": [0.0] * 3},  # nothing is done there
            {},
        ],
    )
    def test_others_are_not(self, paces: dict[str, list[float]]):
        assert find_stragglers(paces, limits=self.LIMITS) == {}

    def test_only_the_newest_stretches_count(self):
        assert list(find_stragglers({"a": [1.0] * 9, "b": [1.0] * 6 + [2.0] * 3}, limits=self.LIMITS)) == ["b"]

    def test_it_is_told_or_replaced_some_times(self):
        event = Straggler("stage 0 replica 1", 2.5, "10.0.0.7")
        assert decide(event, failures=0, limits=Limits()) == Tell()
        replacing = Limits(stragglers="replace", replacements=2)
        assert [decide(event, failures=done, limits=replacing) for done in range(3)] == [
            Restart(0.0), Restart(0.0), Tell(),
        ]  # fmt: skip
        assert "2.5 times" in describe(event)
        assert "10.0.0.7" in describe(event)


@pytest.mark.parametrize("event", [*PASSING, Lacking("x", 0.0, False), Straggler("x", 2.0), Returned()], ids=kind_of)
def test_every_event_has_words_and_a_word(event: Event):
    assert describe(event)
    assert kind_of(event).isalpha()
