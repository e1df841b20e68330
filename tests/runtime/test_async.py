"""Asynchronous training: how far stages run ahead, and what it gives."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from heterps.data import Synthetic
from heterps.models import BCEWithLogits, Chain, Layer, zoo
from heterps.plan import Plan
from heterps.runtime import train
from heterps.telemetry import Recorder, Span
from tests.runtime.chains import random_batches, seeded, small
from tests.runtime.plain import Factory, rows_of, sgd
from tests.runtime.plans import every_plan, make_plan, shape
from tests.runtime.test_layers import CASES
from tests.telemetry.fakes import Kept

BATCHES = random_batches(30)
LIMIT_S = 150.0


def same_weights(one: Chain, other: Chain) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    rows = [(rows_of(one, name, 40), rows_of(other, name, 40)) for name in one.tables]
    return all(torch.equal(ours[name], theirs[name]) for name in ours) and all(torch.equal(a, b) for a, b in rows)


@pytest.mark.parametrize("plan", [*every_plan(5, stages=2), *every_plan(5, stages=3)[:3]], ids=shape)
def test_without_staleness_it_is_sync_to_the_bit(plan: Plan):
    runs = []
    for mode in ({"mode": "sync"}, {"mode": "async", "staleness": 0}):
        chain = small()
        runs.append((chain, train(chain, BATCHES, plan, micro_batches=2, optimizer=sgd, **mode)))
    (sync, first), (other, second) = runs
    assert first.losses == second.losses
    assert same_weights(sync, other)


@pytest.mark.parametrize("staleness", [1, 4])
def test_stages_run_ahead(staleness: int):
    """Async with staleness is no sync: the pipeline fills. The last stage has time until the first has gone ahead."""
    begun = threading.Event()

    class First(nn.Module):
        calls = 0

        def forward(self, rows: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 2 * staleness:  # of two micro-batches each
                begun.set()
            return rows

    class Last(nn.Module):
        calls = 0

        def forward(self, logit: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 1:
                begun.wait(LIMIT_S)
            return logit

    rows, fc1, *others, loss = small().layers
    chain = Chain(
        rows, Layer("first", First(), reads="rows", writes="seen"),
        Layer("fc1", fc1.module, reads=["seen", "dense"], writes="fc1"), *others,
        Layer("last", Last(), reads="logit", writes="held"),
        Layer("loss", loss.module, reads=["held", "label"], writes="loss"),
    )  # fmt: skip
    spans = recorded(lambda recorder: train(chain, BATCHES, make_plan(chain, (2, 4)), micro_batches=2, optimizer=sgd,
                                            mode="async", staleness=staleness, recorder=recorder))  # fmt: skip
    assert max(ahead(spans, 0)) == staleness


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("staleness", [0, 1, 2, 5])
def test_no_stage_runs_further_ahead_than_it_may(staleness: int, micro_batches: int):
    """A forward of step n begins when the updates up to n - 1 - staleness have ended."""
    spans = recorded(
        lambda recorder: train(small(), BATCHES, make_plan(5, (1, 2, 4)), micro_batches=micro_batches, optimizer=sgd,
                               mode="async", staleness=staleness, recorder=recorder)
    )  # fmt: skip
    for stage in range(4):
        assert len([span for span in spans if span.stage == stage and span.name == "update"]) == len(BATCHES)
        assert max(ahead(spans, stage)) <= staleness


def recorded(run: Callable[[Recorder], object]) -> list[Span]:
    kept = Kept("span")
    with Recorder([kept]) as recorder:
        run(recorder)
    return [record for record in kept.records if isinstance(record, Span)]


def ahead(spans: list[Span], stage: int) -> list[int]:
    """For each forward of a stage, how many earlier steps were not applied to it when it began."""
    updates = {span.step: span.t + span.duration_s for span in spans if span.stage == stage and span.name == "update"}
    forwards = [span for span in spans if span.stage == stage and span.name == "forward"]
    assert forwards
    return [
        sum(1 for step, end in updates.items() if step < (forward.step or 0) and end > forward.t)
        for forward in forwards
    ]


def test_tables_that_stages_share_stay_within_the_bound():
    """Shared tables wait for the pushes of all their users, and nobody waits for ever."""
    for staleness in (0, 1, 3):
        chain = CASES["one_table_at_both_ends"]()
        plan = make_plan(chain, (1, 3, 5))
        result = train(chain, BATCHES, plan, micro_batches=2, optimizer=sgd, mode="async", staleness=staleness)
        assert len(result.losses) == len(BATCHES)


@pytest.mark.parametrize("optimizer", ["adam", "sgd", sgd], ids=["adam", "sgd", "a function"])
def test_weights_may_change_between_forward_and_backward(optimizer: str | Factory):
    """Autograd refuses a backward through weights that were changed in place; here that is what is wanted.

    Stages of two layers: the backward of the second needs its weights. Fused optimizers go unnoticed by autograd.
    """

    @seeded
    def make() -> Chain:
        layers = [
            Layer(f"h{n}", nn.Linear(2, 2), reads=f"h{n - 1}" if n else "dense", writes=f"h{n}") for n in range(4)
        ]
        out = Layer("logit", nn.Linear(2, 1), reads="h3", writes="logit")
        return Chain(*layers, out, Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss"))

    chain = make()
    result = train(chain, BATCHES, make_plan(chain, (2, 4)), micro_batches=2, optimizer=optimizer, lr=0.01,
                   mode="async", staleness=4)  # fmt: skip
    assert len(result.losses) == len(BATCHES)
    assert any(not torch.equal(a, b) for a, b in zip(chain.parameters(), make().parameters(), strict=True))


def test_staleness_4_learns_as_well_as_sync():
    """Within 0.002 of the AUC of sync, on held-out data."""
    source = Synthetic(rows=60_000, ids=2_000, slots=8, dense=4, in_memory=True)
    training, held_out = source.split(0.25)
    found = {}
    for mode in ({"mode": "sync"}, {"mode": "async", "staleness": 4}):
        chain = zoo.build("ctrdnn", dim=4, slots=8, dense=4, hidden=(16, 8), optimizer="adagrad", lr=0.05)
        result = train(
            chain, training, make_plan(chain, (1, 3)), batch_size=256, epochs=2, lr=2e-3, evaluation=held_out, **mode
        )
        found[mode["mode"]] = result.auc
    assert found["sync"] is not None
    assert found["async"] is not None
    assert found["sync"] > 0.72, "it has learned something"
    assert abs(found["async"] - found["sync"]) < 0.002, found
