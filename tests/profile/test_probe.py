"""Short runs by a plan."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from torch import Tensor

from heterps.models import Chain
from heterps.profile.gpu import leading_embeddings
from heterps.profile.probe import FIRST_STEPS, _typical, plan_of, probe
from heterps.profile.sweep import Effort
from heterps.runtime.settings import Settings
from tests.profile.sleepers import Sleeper, even_batches, sleepy
from tests.runtime import chains

SHORT = Effort(seconds=0.0)


@pytest.mark.parametrize(("settings", "calls"), [({}, 1), ({"micro_batches": 2}, 2), ({"mode": "async"}, 1)])
def test_a_step_takes_what_its_layers_take(settings: dict[str, Any], calls: int) -> None:
    made: list[Sleeper] = []

    def make() -> Chain:
        made.append(Sleeper(forward_s=0.002, backward_s=0.002))
        return sleepy(made[-1])

    found = probe(make, even_batches(2), plan_of([("cpu", "cpu", 5, 1)]), Settings(**settings), SHORT)
    assert found.step_s >= calls * 0.004
    assert len(found.stage_s) == 1
    assert found.stage_s[0] >= calls * 0.004
    assert [len(sleeper.samples) for sleeper in made] == [FIRST_STEPS * calls]


class SlowStart(Sleeper):
    """Sleeps in its first three calls."""

    def forward(self, values: Tensor) -> Tensor:
        self.forward_s = 0.1 if len(self.samples) < 3 else 0.0
        return super().forward(values)


@pytest.mark.usefixtures("nap_time")
def test_first_steps_do_not_count() -> None:
    plan = plan_of([("cpu", "cpu", 5, 1)])
    assert probe(lambda: sleepy(SlowStart()), even_batches(2), plan, Settings(), SHORT).step_s < 0.1


@pytest.mark.usefixtures("nap_time")
def test_each_stage_has_its_own_time() -> None:
    plan = plan_of([("a", "cpu", 2, 1), ("b", "cpu", 3, 1)])
    assert plan.placement == ("a", "a", "b", "b", "b")
    found = probe(lambda: sleepy(Sleeper(forward_s=0.01)), even_batches(2), plan, Settings(), SHORT)
    assert found.stage_s[1] >= 0.01 > found.stage_s[0]
    assert found.step_s >= 0.01


def test_a_probe_goes_on_until_it_was_long_enough() -> None:
    made: list[Sleeper] = []

    def make() -> Chain:
        made.append(Sleeper(forward_s=0.001))
        return sleepy(made[-1])

    probe(make, even_batches(2), plan_of([("cpu", "cpu", 5, 1)]), Settings(), Effort(seconds=0.3))
    steps = [len(sleeper.samples) for sleeper in made]
    assert steps == sorted(set(steps)), "each run is longer than the one before, on a new chain"
    assert steps[0] == FIRST_STEPS


def test_rows_that_lead_a_chain() -> None:
    assert leading_embeddings(chains.small()) == 1
    assert leading_embeddings(Chain(chains.fc("logit", "dense", 2, 1, relu=False), chains.loss())) == 0


def test_ctrl_c_ends_a_probe() -> None:
    """A run ends cleanly at SIGINT, and says so; a probe must not go on as if it had been long enough."""

    class Interrupting(Sleeper):
        def forward(self, values: Tensor) -> Tensor:
            if len(self.samples) == 2:
                signal.raise_signal(signal.SIGINT)
            return super().forward(values)

    with pytest.raises(KeyboardInterrupt):
        probe(lambda: sleepy(Interrupting()), even_batches(2), plan_of([("cpu", "cpu", 5, 1)]), Settings(), SHORT)


def test_a_hiccup_does_not_count() -> None:
    steady = [0.01 * step for step in range(21)]
    late = [time + (0.5 if step > 8 else 0.0) for step, time in enumerate(steady)]
    assert _typical(late) == pytest.approx(_typical(steady)) == pytest.approx(0.01)
    assert _typical([0.0, 0.01]) == pytest.approx(0.01)
