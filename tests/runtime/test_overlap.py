"""Stages work at the same time, and go backward before forward."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heterps.models import BCEWithLogits, Chain, Layer
from heterps.runtime import train
from heterps.runtime.placement import StageSpec
from heterps.runtime.stage import Stage, Step
from heterps.runtime.worker import Backward, Fed, Worker
from heterps.telemetry import ChromeTrace, Recorder, Span
from tests.runtime.chains import fc, random_batches
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan
from tests.runtime.test_waiting import Hub
from tests.telemetry.fakes import Clock, Kept

MICRO_BATCHES = 4
STEPS = 5
WORK_S = 0.003
LIMIT_S = 150.0


class Floor:
    """Where stages work: how many at once at most, and meetings at which each waits for all others to be at work."""

    def __init__(self, stages: int, *, micro_batches: int) -> None:
        self.stages, self.most = stages, 0
        self._micro_batches, self._here, self._lock = micro_batches, 0, threading.Lock()
        self._meetings = {
            (step, number): threading.Barrier(stages)
            for step in range(STEPS) for number in range(micro_batches - stages + 1)
        }  # fmt: skip

    def enter(self) -> None:
        with self._lock:
            self._here += 1
            self.most = max(self.most, self._here)

    def leave(self) -> None:
        with self._lock:
            self._here -= 1

    def meet(self, stage: int, call: int) -> None:
        """The n-th meeting of a step: the last stage is at micro-batch n, each one before it at one more.

        Stages of which one waits for the other to end never meet, and their run fails.
        """
        step, micro_batch = divmod(call, self._micro_batches)
        meeting = self._meetings.get((step, micro_batch - (self.stages - 1 - stage)))
        if meeting is not None:
            meeting.wait(LIMIT_S)


class _Slow(torch.autograd.Function):
    """Takes its time in both directions, without the interpreter's lock, as large products do."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, floor: Floor | None, stage: int, call: int) -> Tensor:
        ctx.floor = floor
        if floor is None:
            time.sleep(WORK_S)
            return values.clone()
        floor.enter()
        floor.meet(stage, call)
        time.sleep(WORK_S)
        floor.leave()
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.floor is not None:
            ctx.floor.enter()
        time.sleep(WORK_S)
        if ctx.floor is not None:
            ctx.floor.leave()
        return grad, None, None, None


class Slow(nn.Module):
    def __init__(self, stage: int, floor: Floor | None) -> None:
        super().__init__()
        self.stage, self.floor, self.calls = stage, floor, 0

    def forward(self, values: Tensor) -> Tensor:
        self.calls += 1
        return _Slow.apply(values, self.floor, self.stage, self.calls - 1)


def slow(stages: int, floor: Floor | None = None) -> Chain:
    torch.manual_seed(0)
    layers = [fc("h", "dense", 2, 2)]
    layers += [Layer(f"s{n}", Slow(n, floor), reads=f"s{n - 1}" if n else "h", writes=f"s{n}") for n in range(stages)]
    layers += [fc("logit", f"s{stages - 1}", 2, 1, relu=False),
               Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss")]  # fmt: skip
    return Chain(*layers)


def most_at_once(stages: int, *, micro_batches: int = MICRO_BATCHES, **settings: Any) -> int:
    """In a run in which every stage has one slow layer."""
    floor = Floor(stages, micro_batches=micro_batches)
    chain = slow(stages, floor)
    plan = make_plan(chain, range(2, stages + 1))
    train(chain, random_batches(STEPS), plan, micro_batches=micro_batches, **settings)
    return floor.most


@pytest.mark.parametrize("settings", [{}, {"mode": "async", "staleness": 2}], ids=["sync", "async"])
def test_stages_overlap(settings: dict[str, Any]):
    """In sync mode 2 stages with 4 micro-batches work together for most of a step."""
    assert most_at_once(2, **settings) == 2


def test_three_stages_overlap():
    assert most_at_once(3) == 3


def test_one_micro_batch_cannot_overlap_in_sync_mode():
    """The measure above is no matter of chance: without micro-batches there is nothing to overlap."""
    assert most_at_once(2, micro_batches=1) == 1


def test_backward_goes_before_forward():
    """A stage that has a gradient to work on takes it before the next micro-batch, so that little is in flight.

    In async mode stage 0 could run forward far ahead; here it has batches for that all the time.
    """
    chain, hub, kept = slow(2), Hub(Clock(), None), Kept("span")
    sent: dict[tuple[int, int], Any] = {}
    hub.send = lambda stage, message: sent.update({(message.step, message.micro_batch): message.tensors})
    stage = Stage(StageSpec(0, 0, 1, "alpha", 1, torch.device("cpu"), 1), chain, [], optimizer=sgd)
    with Recorder([kept]) as hub.recorder:
        worker = Worker(stage, hub, first_step=0, staleness=3)
        for number, batch in enumerate(random_batches(3)):
            step = Step(number, {name: batch[name] for name in stage.reads}, [0, 8, 15])
            prepared: Future[Any] = Future()
            prepared.set_result(stage.prepare(step))
            worker.take(Fed(step, prepared))
        # Gradients that come, and how much is done before more do.
        for gradients, times in (([], 1), ([(0, 0)], 3), ([(0, 1)], 2), ([(1, 0), (1, 1)], 3)):
            for key in gradients:
                worker.take(Backward(*key, {name: torch.ones_like(value) for name, value in sent[key].items()}))
            for _ in range(times):
                assert worker.work()
    assert [(span.name, span.step, span.micro_batch) for span in kept.records if isinstance(span, Span)] == [
        ("forward", 0, 0),
        ("backward", 0, 0), ("forward", 0, 1), ("forward", 1, 0),
        ("backward", 0, 1), ("update", 0, None), ("forward", 1, 1),
        ("backward", 1, 0), ("backward", 1, 1), ("update", 1, None), ("forward", 2, 0),
    ]  # fmt: skip


def test_every_micro_batch_has_its_spans(tmp_path: Path):
    chain, kept = slow(2), Kept("span")
    with Recorder([kept, ChromeTrace(tmp_path / "trace.json")]) as recorder:
        result = train(chain, random_batches(STEPS), make_plan(chain, (2,)), micro_batches=MICRO_BATCHES,
                       recorder=recorder)  # fmt: skip
    seen = {(span.name, span.stage, span.step, span.micro_batch) for span in kept.records if isinstance(span, Span)}
    parts = [(step, part) for step in range(STEPS) for part in range(MICRO_BATCHES)]
    assert {("forward", stage, *part) for stage in (0, 1) for part in parts} <= seen
    assert {("backward", 0, *part) for part in parts} <= seen
    assert {("update", stage, step, None) for stage in (0, 1) for step in range(STEPS)} <= seen
    assert "backward" in (tmp_path / "trace.json").read_text()
    assert all(0 < stage.busy <= 1 for stage in result.stages)
    assert [stage.type for stage in result.stages] == ["alpha", "beta"]
