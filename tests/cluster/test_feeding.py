"""Replicas go on while nobody asks, as far as they may, and answer for the step that was asked for."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from heterps.runtime.cluster.feeding import Bounds, Mark
from heterps.runtime.cluster.mail import PeerLost
from heterps.runtime.cluster.replica import Replica
from tests.cluster.inprocess import run_here
from tests.cluster.jobs import PATIENCE_S, wait_for
from tests.runtime.chains import random_batches, small
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan
from tests.runtime.reference import dense_optimizer

STEPS = 12
FIRST, LAST = (4, 9), (STEPS, STEPS)


class Feeder:
    """Feeds what may be fed, and does the steps that the test says."""

    def __init__(self, bounds: Bounds, *, ahead: int = 0, data: int = 100) -> None:
        self.bounds, self.error = bounds, None
        self._thread = threading.Thread(target=self._run, args=(ahead, data), daemon=True)
        self._thread.start()

    def _run(self, ahead: int, data: int) -> None:
        try:
            while (number := self.bounds.may_feed(ahead)) < data:
                self.bounds.feed(Mark(10 * (number + 1), number + 1))
            self.bounds.end()
        except Exception as error:
            self.error = error

    def do(self, *steps: int) -> None:
        for step in steps:
            assert wait_for(lambda: self.bounds.fed > step), f"step {step} was not fed"  # noqa: B023
            self.bounds.finish(step)

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as made:
        yield made


def test_steps_are_fed_as_far_as_allowed(pool):
    bounds = Bounds(3, Mark(30, 3), timeout_s=PATIENCE_S)
    feeder = Feeder(bounds, ahead=1)
    asked = pool.submit(bounds.reach, 5, 6)
    assert wait_for(lambda: bounds.fed == 5)  # one ahead of step 3, which is being done
    feeder.do(3, 4)
    assert asked.result(PATIENCE_S) == (5, Mark(50, 5), False)
    assert not bounds.is_still(5)
    feeder.do(5)
    assert bounds.done == bounds.fed == bounds.allowed == 6, "no further than allowed"
    assert bounds.reach(6, 6) == (6, Mark(60, 6), False)
    assert bounds.is_still(6)


def test_the_answer_is_of_the_step_asked_for_though_more_is_done():
    bounds = Bounds(0, Mark(0, None), timeout_s=PATIENCE_S)
    feeder = Feeder(bounds, ahead=8)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(bounds.reach, 2, 8)
        feeder.do(*range(8))
        assert asked.result(PATIENCE_S)[0] == 2
    assert bounds.reach(4, 8) == (4, Mark(40, 4), False)
    assert bounds.reach(8, 8) == (8, Mark(80, 8), False)


@pytest.mark.parametrize("data", [0, 2, 4, 5, 8])
def test_the_end_of_the_data_is_told_once_all_is_done(pool, data):
    bounds = Bounds(0, Mark(0, None), timeout_s=PATIENCE_S)
    feeder, found = Feeder(bounds, data=data), (0, Mark(0, None), False)
    for until, allowed in (4, 8), (8, 12), (12, 12):
        asked = pool.submit(bounds.reach, until, allowed)
        feeder.do(*range(found[0], min(until, data)))
        found = asked.result(PATIENCE_S)
        if found[2]:
            break
    assert found == (data, Mark(10 * data, data or None), True)
    assert bounds.is_still(data)
    feeder.join()


@pytest.mark.parametrize("waits", ["feeder", "caller", "nobody yet"])
def test_an_error_ends_all_waiting(pool, waits):
    bounds, error = Bounds(0, Mark(0, None), timeout_s=PATIENCE_S), ValueError("no")
    feeder = Feeder(bounds) if waits == "feeder" else None
    asked = pool.submit(bounds.reach, 2, 2) if waits == "caller" else None
    bounds.fail(error)
    bounds.fail(KeyError("later"))
    if feeder is not None:
        feeder.join()
        assert feeder.error is error
    with pytest.raises(ValueError, match="no"):
        asked.result(PATIENCE_S) if asked is not None else bounds.reach(2, 2)


def test_steps_that_do_not_get_done_are_not_waited_for():
    bounds = Bounds(0, Mark(0, None), timeout_s=0.05)
    with pytest.raises(PeerLost, match="step 0 was not finished"):
        bounds.reach(1, 1)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_who_goes_on_tells_the_same_as_who_stops(tmp_path, monkeypatch, mode):
    """Of each stretch, to the bit, however far beyond its end a replica is when it answers."""
    told = []
    run, reach = Replica.run, Bounds.reach

    def told_of(self, until, allowed):
        progress = run(self, until, allowed)
        told.append((str(self._seat), progress))
        return progress

    def late(self, until, allowed):
        found = reach(self, until, allowed)
        assert wait_for(lambda: self.done == self.allowed)
        return found

    monkeypatch.setattr(Replica, "run", told_of)
    options = {"mode": mode, **({"staleness": 0} if mode == "async" else {})}

    def stretches(name, ends):
        told.clear()
        _, losses, _ = run_here(
            small, random_batches(STEPS), make_plan(5, (2,), units=[2, 1]), micro_batches=3, shards=2, replicas=[2, 1],
            path=tmp_path / name, optimizer=dense_optimizer, log_every=3, steps=STEPS, stretches=ends, **options,
        )  # fmt: skip
        ordered = sorted(told, key=lambda one: (one[0], one[1].step))
        assert len(ordered) == 3 * len(ends)
        return losses, [(one.step, one.samples, one.position, one.losses, one.auc, one.aucs) for _, one in ordered]

    stops = stretches("stops", [(4, 4), (9, 9), LAST])
    assert stretches("whole", [LAST])[0] == stops[0]
    monkeypatch.setattr(Bounds, "reach", late)
    assert stretches("goes on", [FIRST, (9, STEPS), LAST]) == stops


def test_replicas_go_on_unasked(tmp_path, monkeypatch):
    """And no further than they were allowed to."""
    calls, own = [], Replica.run

    def run_and_look(self, until, allowed):
        told = own(self, until, allowed)
        if until == FIRST[0]:
            assert wait_for(lambda: self.step == FIRST[1]), f"stands at {self.step}"
            calls.append(told.step)
        return told

    monkeypatch.setattr(Replica, "run", run_and_look)
    run_here(
        small, random_batches(STEPS), make_plan(5, units=2), micro_batches=2, shards=1, replicas=[2], path=tmp_path,
        optimizer=sgd, steps=STEPS, stretches=[FIRST, (FIRST[1], STEPS), LAST],
    )  # fmt: skip
    assert calls == [FIRST[0]] * 2
