"""A stage that waits for others is not busy: neither for servers, nor for who else uses a table."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heterps.models import Chain, Layer
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.rows import GatheredPush
from heterps.runtime.later import Later
from heterps.runtime.placement import StageSpec
from heterps.runtime.rows import DistinctRows, HostRows
from heterps.runtime.stage import Stage, Step
from heterps.runtime.tables import SharedPush
from heterps.runtime.worker import Backward, Fed, Worker
from heterps.store import SparseTable
from heterps.telemetry import Recorder
from tests.runtime.chains import DENSE, DIM, SLOTS, embedding, fc, loss, random_batches
from tests.runtime.plain import sgd
from tests.telemetry.fakes import Clock

WAIT_S, WORK_S = 10.0, 1.0
STEPS, SIZE = 3, 16


class SlowServers:
    """A remote table, as far as rows need one, whose every answer takes its time."""

    def __init__(self, clock: Clock, *, asks_early: bool = False) -> None:
        self._clock, self.asks_early = clock, asks_early
        self.waits = 0
        self.met: list[dict[str, Any]] = []

    def _answer(self) -> None:
        self._clock.now += WAIT_S
        self.waits += 1

    def prepare(self, ids: Any) -> None:
        pass

    def pull(self, ids: Tensor, *, out: Tensor | None = None) -> Tensor:
        self._answer()
        return torch.zeros(*ids.shape, DIM) if out is None else out.zero_()

    def pull_after(self, ids: Tensor, step: int) -> Any:
        return self

    def rows(self, timeout_s: float) -> Any:
        self._answer()
        return np.zeros((SIZE, SLOTS, DIM), np.float32)

    def wait_for(self, step: int, *, timeout_s: float) -> None:
        self._answer()

    def set_lr(self, lr: float) -> None:
        self._answer()

    def push(self, ids: Tensor, grads: Tensor) -> None:
        pass

    def push_part(self, *args: Any, **options: Any) -> None:
        pass

    def meet(self, **what: Any) -> None:
        self.met.append(what)


class SlowPeers(SharedPush):
    """A table of this process whose other user is a slow stage."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(SparseTable(dim=DIM, optimizer="sgd", lr=1.0), 2)
        self._clock = clock
        self.waits = 0

    def wait_for(self, step: int, *, own: bool = False) -> None:
        if self._pushed < step:
            self._clock.now += WAIT_S
            self.waits += 1
            self._pushed = step


class Hub:
    def __init__(self, clock: Clock, schedule: Callable[[int], float] | None) -> None:
        self.recorder, self.schedule = Recorder(clock=clock), schedule

    def send(self, stage: int, message: Any) -> None:
        pass

    def applied(self, stage: int, step: Step, loss: Any) -> None:
        pass

    def reduce(self, step: int, stage: Stage) -> Later[float]:
        return Later(lambda: 1.0)

    def fail(self, error: BaseException, stage: StageSpec) -> None:
        raise error


def chain_on(clock: Clock) -> Chain:
    """Its layer `work` takes a second for each micro-batch."""

    def work(values: Tensor) -> Tensor:
        clock.now += WORK_S
        return values

    return Chain(
        embedding("rows"),
        Layer("work", work, reads="dense", writes="worked"),
        fc("logit", ["rows", "worked"], SLOTS * DIM + DENSE, 1, relu=False),
        loss(),
    )


def busy_s(clock: Clock, chain: Chain, rows: Any, *, last: int = 3, schedule: Any = None) -> float:
    """Of a stage that does some steps in one micro-batch each."""
    spec = StageSpec(0, 0, last, "alpha", 1, torch.device("cpu"), 1)
    stage, hub = Stage(spec, chain, [rows], optimizer=sgd), Hub(clock, schedule)
    worker = Worker(stage, hub, first_step=0, staleness=0)
    (batch,) = random_batches(1, size=SIZE)
    for number in range(STEPS):
        step = Step(number, {name: batch[name] for name in stage.reads}, [0, SIZE])
        prepared: Future[Any] = Future()
        prepared.set_result(stage.prepare(step))
        worker.take(Fed(step, prepared))
        assert worker.work()
        if not stage.is_last:
            worker.take(Backward(number, 0, dict.fromkeys(stage.outgoing)))
            assert worker.work()
    return hub.recorder.busy_s(0)


def test_for_servers_that_nobody_else_uses():
    clock = Clock()
    servers, chain = SlowServers(clock), chain_on(clock)
    rows = HostRows(chain.embeddings[0], SharedPush(servers, 1))  # type: ignore[arg-type]
    assert busy_s(clock, chain, rows) == pytest.approx(STEPS * WORK_S)
    assert servers.waits == STEPS


@pytest.mark.parametrize("asks_early", [False, True])
def test_for_the_other_replicas_of_a_gathered_push(asks_early: bool):
    """Each step asks for its rows ahead; by messages the first one does when it begins."""
    clock = Clock()
    servers, chain = SlowServers(clock, asks_early=asks_early), chain_on(clock)
    push = GatheredPush(servers, [(Seat(0, 0), "rows"), (Seat(0, 1), "rows")], Seat(0, 0), 30.0)  # type: ignore[arg-type]
    push.start_at(0)
    assert servers.met == [{"step": 0, "own": [0], "parts": 2}]
    assert busy_s(clock, chain, HostRows(chain.embeddings[0], push)) == pytest.approx(STEPS * WORK_S)
    assert servers.waits == 2 * STEPS


def test_for_another_stage_that_uses_the_table():
    clock = Clock()
    push, chain = SlowPeers(clock), chain_on(clock)
    assert busy_s(clock, chain, HostRows(chain.embeddings[0], push)) == pytest.approx(STEPS * WORK_S)
    assert push.waits == STEPS - 1


def test_for_rows_that_cross_to_a_gpu():
    clock = Clock()
    servers, chain = SlowServers(clock), chain_on(clock)
    rows = DistinctRows(chain.embeddings[0], SharedPush(servers, 1), pin=False)  # type: ignore[arg-type]
    assert busy_s(clock, chain, rows, last=1) == pytest.approx(STEPS * WORK_S)
    assert servers.waits == STEPS


def test_for_servers_that_are_told_a_learning_rate():
    clock = Clock()
    servers, chain = SlowServers(clock), chain_on(clock)
    rows = HostRows(chain.embeddings[0], SharedPush(servers, 1))  # type: ignore[arg-type]
    assert busy_s(clock, chain, rows, schedule=lambda step: 1.0) == pytest.approx(STEPS * WORK_S)
    assert servers.waits == 2 * STEPS


def test_work_on_a_table_of_its_own_counts(monkeypatch: pytest.MonkeyPatch):
    """Nobody is waited for: a pull is the stage's own work."""
    clock = Clock()
    table, chain = SparseTable(dim=DIM, optimizer="sgd", lr=1.0), chain_on(clock)
    pull = SparseTable.pull

    def slow(self: SparseTable, *args: Any, **options: Any) -> Any:
        clock.now += WORK_S
        return pull(self, *args, **options)

    monkeypatch.setattr(SparseTable, "pull", slow)
    rows = HostRows(chain.embeddings[0], SharedPush(table, 1), look_ahead=False)
    assert busy_s(clock, chain, rows) == pytest.approx(2 * STEPS * WORK_S)
