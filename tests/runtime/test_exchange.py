"""A stage of embeddings whose rows are pulled and pushed by native threads, and the thread it shares with the next."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from heterps._native import Errands, Inbox
from heterps.models import Batch, Chain
from heterps.runtime.exchange import Exchange, ExchangeStage
from heterps.runtime.pipeline import Pipeline, StageFailed
from heterps.runtime.placement import StageSpec
from heterps.runtime.stage import Stage
from heterps.runtime.tables import bind_tables
from heterps.store import SparseTable
from heterps.telemetry import Recorder, Span
from tests.runtime.chains import IDS, random_batches, small
from tests.runtime.plain import plain, sgd
from tests.telemetry.fakes import Kept

CPU = torch.device("cpu")
BATCHES = random_batches(40)
Await = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Brief(Stage):
    """Goes into one thread with the stage before."""

    brief = True


def run(
    chain: Chain,
    batches: list[Batch],
    *,
    kind: type[Stage] = Stage,
    staleness: int = 0,
    schedule: Callable[[int], float] | None = None,
    recorder: Recorder | None = None,
) -> tuple[list[float], Pipeline]:
    """Trains with the embedding in a stage of its own; gives the losses, and the pipeline as it was."""
    bind_tables(chain, threads=2)
    layer = chain.embeddings[0]
    assert isinstance(layer.table, SparseTable)
    first, last = (StageSpec(n, *layers, "cpu", 1, CPU, 1) for n, layers in enumerate([(0, 0), (1, 4)]))
    exchange = Exchange(layer, layer.table, staleness=staleness, pin=False)
    stages = [
        ExchangeStage(first, chain, [], exchanges=[exchange], optimizer=sgd),
        kind(last, chain, [], optimizer=sgd, keep_weights_version=True),
    ]
    pipeline = Pipeline(stages, staleness=staleness, schedule=schedule, recorder=recorder or Recorder())
    try:
        for batch in batches:
            pipeline.submit(batch, 1)
        pipeline.drain()
        losses = pipeline.losses(wait=True)
    finally:
        pipeline.close()
        for stage in stages:
            stage.finish()
    return [float(losses[step]) for step in sorted(losses)], pipeline


@pytest.mark.parametrize("kind", [Stage, Brief])
def test_without_staleness_it_is_plain_pytorch(kind: type[Stage]):
    chain = small()
    losses, pipeline = run(chain, BATCHES, kind=kind)
    plain(small, BATCHES, ids=IDS).assert_same(chain, losses)
    assert len(set(pipeline._runners)) == (1 if kind is Brief else 2)


def test_learning_rates_come_with_the_pushes():
    """A rate of zero from step 20 on leaves the rows as 20 steps made them."""
    short, long = small(), small()
    run(short, BATCHES[:20])
    run(long, BATCHES, schedule=lambda step: 1.0 if step < 20 else 0.0)
    ids = torch.arange(IDS)
    one, other = (torch.as_tensor(chain.tables["rows"].pull(ids, create=False)) for chain in (short, long))
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [Stage, Brief])
@pytest.mark.parametrize("staleness", [1, 4])
def test_no_pull_is_further_ahead_than_it_may(kind: type[Stage], staleness: int):
    kept = Kept("span")
    with Recorder([kept]) as recorder:
        losses, _ = run(small(), BATCHES, kind=kind, staleness=staleness, recorder=recorder)
        busy = recorder.busy(0)
    assert len(losses) == len(BATCHES)
    assert 0 < busy < 1
    spans = [record for record in kept.records if isinstance(record, Span) and record.stage == 0]
    pulls, pushes = ({span.step: span for span in spans if span.name == name} for name in ("forward", "update"))
    assert pulls.keys() == pushes.keys() == set(range(len(BATCHES)))
    for step in range(staleness + 1, len(BATCHES)):
        before = pushes[step - 1 - staleness]
        assert pulls[step].t >= before.t + before.duration_s - 1e-6


def test_what_a_layer_raises_ends_the_run():
    chain = small()

    def fail(*_: Any) -> Any:
        raise RuntimeError("no luck")

    chain.layers[2].module.forward = fail  # type: ignore[method-assign]
    with pytest.raises(StageFailed, match="no luck"):
        run(chain, BATCHES, kind=Brief)


class Counting:
    """A table of ones' sums: its rows say how many pushes a pull has seen."""

    def __init__(self, *, lag: int, await_event: int = 0) -> None:
        self.table = SparseTable(dim=2, optimizer="sgd", lr=1.0, init_scale=0.0)
        self.inbox = Inbox()
        self.errands: Errands = self.table.errands(self.inbox, lag=lag, await_event=await_event)
        self.ids = np.array([5, 7, 5])
        self.rows: list[Any] = []
        self.grads = -np.ones((2, 2), np.float32)

    def pull(self) -> None:
        self.rows.append(np.zeros((3, 2), np.float32))
        self.errands.pull(self.ids, np.zeros(3, np.int32), self.rows[-1], 0)

    def push(self, event: int = 0) -> None:
        self.errands.push(self.grads.ctypes.data, event, None, 0)

    def wait(self, which: Callable[[], Any]) -> Any:
        while (done := which()) is None:
            self.inbox.get(wait=True)
        return done


def test_a_pull_sees_the_pushes_it_must():
    counting = Counting(lag=3)
    for _ in range(50):
        counting.pull()
    for number in range(50):
        distinct, began, ended = counting.wait(counting.errands.pulled)
        assert (distinct, began <= ended) == (2, True)
        assert number - 2 <= counting.rows[number][0, 0] <= number
        counting.push()
    for _ in range(50):
        counting.wait(counting.errands.pushed)
    assert counting.table.pull(np.array([7]))[0, 0] == 50
    assert counting.errands.pulled() is None
    assert counting.errands.pushed() is None
    counting.errands.close()


def test_a_push_waits_for_its_event():
    happened, asked = threading.Event(), []

    @Await
    def wait(event: int) -> int:
        asked.append(event)
        happened.wait()
        return 0

    counting = Counting(lag=2, await_event=ctypes.cast(wait, ctypes.c_void_p).value or 0)
    counting.pull()
    counting.wait(counting.errands.pulled)
    counting.push(event=77)
    while not asked:
        time.sleep(0.001)
    assert asked == [77]
    assert counting.errands.pushed() is None
    assert counting.table.pull(np.array([7]))[0, 0] == 0
    happened.set()
    counting.wait(counting.errands.pushed)
    assert counting.table.pull(np.array([7]))[0, 0] == 1
    counting.errands.close()


def test_what_goes_wrong_is_told_and_nothing_is_applied():
    @Await
    def wait(event: int) -> int:
        return 700

    counting = Counting(lag=1, await_event=ctypes.cast(wait, ctypes.c_void_p).value or 0)
    counting.pull()
    counting.wait(counting.errands.pulled)
    counting.push(event=1)
    with pytest.raises(RuntimeError, match="700"):
        counting.wait(counting.errands.pushed)
    assert counting.table.pull(np.array([7]))[0, 0] == 0
    counting.errands.close()


def test_gradients_without_a_pull_are_refused():
    counting = Counting(lag=1)
    with pytest.raises(ValueError, match="not pulled"):
        counting.push()


def test_pulls_that_wait_do_not_keep_it_from_closing():
    counting = Counting(lag=1)
    for _ in range(5):
        counting.pull()
    counting.wait(counting.errands.pulled)
    counting.errands.close()


def test_messages_come_in_order_and_the_bell_wakes():
    inbox, got = Inbox(), []

    def write(first: int) -> None:
        for number in range(first, first + 1000):
            inbox.put(number)

    writers = [threading.Thread(target=write, args=(1000 * n,)) for n in range(1, 4)]
    for writer in writers:
        writer.start()
    while len(got) < 3000:
        if (message := inbox.get(wait=True)) is not None:
            got.append(message)
    for n in range(1, 4):
        assert [message for message in got if message // 1000 == n] == list(range(1000 * n, 1000 * n + 1000))
    assert inbox.get(wait=False) is None
    threading.Timer(0.05, inbox.ring).start()
    assert inbox.get(wait=True) is None
