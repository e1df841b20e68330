"""Stages work at the same time, and go backward before forward."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from heterps.models import BCEWithLogits, Chain, Layer
from heterps.runtime import train
from heterps.telemetry import ChromeTrace, Recorder, Span
from tests.runtime.chains import fc, random_batches
from tests.runtime.plans import make_plan
from tests.telemetry.fakes import Kept

MICRO_BATCHES = 4
STEPS = 5
WORK_S = 0.003


class _Slow(torch.autograd.Function):
    """Takes its time in both directions, without the interpreter's lock, as large products do."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        time.sleep(WORK_S)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        time.sleep(WORK_S)
        return grad


def slow(stages: int) -> Chain:
    torch.manual_seed(0)
    layers = [fc("h", "dense", 2, 2)]
    layers += [Layer(f"s{n}", _Slow.apply, reads=f"s{n - 1}" if n else "h", writes=f"s{n}") for n in range(stages)]
    layers += [fc("logit", f"s{stages - 1}", 2, 1, relu=False),
               Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss")]  # fmt: skip
    return Chain(*layers)


def spans_of(stages: int, **settings: Any) -> list[Span]:
    """Of a run in which every stage has one slow layer."""
    chain, kept = slow(stages), Kept("span")
    plan = make_plan(chain, range(2, stages + 1))
    with Recorder([kept]) as recorder:
        train(chain, random_batches(STEPS), plan, micro_batches=MICRO_BATCHES, recorder=recorder, **settings)
    return [record for record in kept.records if isinstance(record, Span) and record.name in ("forward", "backward")]


def overlap_s(spans: list[Span], one: int, other: int) -> float:
    """Seconds in which both stages work."""
    ours, theirs = ([span for span in spans if span.stage == stage] for stage in (one, other))
    return sum(max(0.0, min(a.t + a.duration_s, b.t + b.duration_s) - max(a.t, b.t)) for a in ours for b in theirs)


def worked_s(spans: list[Span], stage: int) -> float:
    return sum(span.duration_s for span in spans if span.stage == stage)


@pytest.mark.parametrize("settings", [{}, {"mode": "async", "staleness": 2}], ids=["sync", "async"])
def test_stages_overlap(settings: dict[str, Any]):
    """In sync mode 2 stages with 4 micro-batches work together for most of a step."""
    spans = spans_of(2, **settings)
    assert overlap_s(spans, 0, 1) > 0.4 * min(worked_s(spans, 0), worked_s(spans, 1))


def test_three_stages_overlap():
    spans = spans_of(3)
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert overlap_s(spans, one, other) > 0.2 * worked_s(spans, other)


def test_one_micro_batch_cannot_overlap_in_sync_mode():
    """The measure above is no matter of chance: without micro-batches there is nothing to overlap."""
    chain, kept = slow(2), Kept("span")
    with Recorder([kept]) as recorder:
        train(chain, random_batches(STEPS), make_plan(chain, (2,)), micro_batches=1, recorder=recorder)
    spans = [record for record in kept.records if isinstance(record, Span) and record.name in ("forward", "backward")]
    assert overlap_s(spans, 0, 1) < 0.05 * worked_s(spans, 1)


def test_backward_goes_before_forward():
    """A stage that has a gradient to work on takes it before the next micro-batch, so that little is in flight.

    In async mode stage 0 could run forward far ahead; each of its forwards that starts after a gradient has come
    from stage 1 would show.
    """
    spans = spans_of(2, mode="async", staleness=3)
    back = {(span.step, span.micro_batch): span for span in spans if span.stage == 0 and span.name == "backward"}
    sent = {
        (span.step, span.micro_batch): span.t + span.duration_s
        for span in spans
        if span.stage == 1 and span.name == "forward"  # the last stage goes backward at once
    }
    ahead = 0
    for key, arrived in sent.items():
        between = [
            span for span in spans
            if span.stage == 0 and span.name == "forward" and arrived + WORK_S / 2 < span.t < back[key].t
        ]  # fmt: skip
        ahead += len(between)
    assert ahead == 0


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
