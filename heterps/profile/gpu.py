"""Times of layers on a GPU.

A stage on a GPU is recorded as one graph where it can be, so that what a layer costs there cannot be seen from the
host. Two things are measured instead: the whole chain as it will run (`whole_step_s`), and each dense layer's kernels
by themselves (`dense_s`): events around its calls, in a stream that waits until all calls are queued, so that the
host's slowness does not count. What the whole takes beyond its dense layers is the rows' share.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from heterps.models import Chain
from heterps.models.batch import Batch, batch_size
from heterps.models.layer import SparseEmbedding
from heterps.profile.sweep import WARM_UP_STEPS, Effort, Times, threads
from heterps.runtime.build import build_stages
from heterps.runtime.placement import StageSpec
from heterps.runtime.rows import Lookup
from heterps.runtime.settings import Settings
from heterps.runtime.stage import Stage, Step
from heterps.runtime.tables import bind_tables, shared_pushes
from heterps.runtime.train import train
from heterps.telemetry import Recorder
from heterps.telemetry.ledger import Span
from heterps.telemetry.records import Kind, Record

WAIT_CYCLES = 100_000_000
"""A GPU's cycles that calls are queued in: some 60 ms, more than the calls of a step take (measured: under 20 ms)."""


class _Steps:
    """A sink that notes when the steps of stage 0 began."""

    kinds: frozenset[Kind] = frozenset({"span"})

    def __init__(self) -> None:
        self.began: dict[int, float] = {}

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Span) and record.name == "forward" and record.stage == 0 and record.step is not None:
                self.began.setdefault(record.step, record.t)

    def close(self) -> None:
        pass


def step_s(run: Callable[[Recorder, int], object], effort: Effort) -> float:
    """Seconds of a step of a run in its steady state: `run` trains so many steps and records them."""
    steps = 24
    while True:
        seen = _Steps()
        with Recorder([seen]) as recorder:
            run(recorder, steps)
        times = [seen.began[step] for step in sorted(seen.began)]
        times = times[len(times) // 2 :]  # the first half: kernels are compiled, graphs recorded, queues filled
        found = (times[-1] - times[0]) / (len(times) - 1)
        if (times[-1] - times[0]) >= effort.seconds / 2 or steps >= 4000:
            return found
        steps = min(4000, max(2 * steps, int(1.2 * effort.seconds / found)))


def whole_step_s(make: Callable[[], Chain], batches: Sequence[Batch], settings: Settings, effort: Effort) -> float:
    """Seconds of a step with all layers on the first GPU, the batches at hand in memory."""

    def run(recorder: Recorder, steps: int) -> None:
        options: dict[str, Any] = {
            "mode": settings.mode, "staleness": settings.staleness, "micro_batches": settings.micro_batches,
            "optimizer": settings.optimizer, "lr": settings.lr, "precision": settings.precision, "seed": settings.seed,
        }  # fmt: skip
        train(make(), batches, steps=steps, recorder=recorder, **options)

    return step_s(run, effort)


def dense_s(chain: Chain, batches: Sequence[Batch], settings: Settings, effort: Effort) -> list[float | None]:
    """Seconds of each dense layer's kernels for a step, update included; None for embedding layers."""
    device = torch.device("cuda", 0)
    bind_tables(chain, seed=settings.seed)
    specs = [StageSpec(number, number, number, "gpu", 1, device, 1) for number in range(len(chain.layers))]
    eager = build_stages(chain, specs, shared_pushes(chain, chain.tables), settings, lambda *_: None, ahead=0)
    stages = [Stage(stage.spec, chain, stage.rows, optimizer=settings.make_optimizer, precision=settings.dtype)
              for stage in eager]  # fmt: skip
    found, until = [], time.perf_counter() + effort.seconds
    for number, batch in enumerate(itertools.cycle(batches)):
        seconds = _timed_step(stages, number, batch, settings.micro_batches)
        if number >= WARM_UP_STEPS:
            found.append(seconds)
        if len(found) >= effort.steps or (time.perf_counter() > until and len(found) >= effort.least):
            break
    for stage in stages:
        stage.finish()
    medians = [statistics.median(step[i] for step in found) for i in range(len(stages))]
    return [None if isinstance(layer, SparseEmbedding) else medians[i] for i, layer in enumerate(chain.layers)]


def _timed_step(stages: Sequence[Stage], number: int, batch: Batch, micro_batches: int) -> list[float]:
    size = batch_size(batch)
    parts = max(1, min(micro_batches, size))
    bounds = [size * part // parts for part in range(parts + 1)]
    steps = []
    for stage in stages:
        own = {name: batch[name] for name in stage.reads}
        held = dict(own)
        for name in stage._tensors:
            if isinstance(value := own[name], torch.Tensor):
                held[name] = value.to("cuda")
        steps.append(Step(number, held, bounds))
        stage.begin(Step(number, own, bounds), stage.prepare(own))
    torch.cuda.synchronize()
    torch.cuda._sleep(WAIT_CYCLES)  # type: ignore[no-untyped-call]
    marks: list[tuple[int, Any, Any]] = []

    def timed(which: int, call: Callable[[], Any]) -> Any:
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        before.record()
        result = call()
        after.record()
        marks.append((which, before, after))
        return result

    for part in range(parts):
        tensors: Any = {}
        for i, stage in enumerate(stages):
            tensors = timed(i, partial(stage.forward, steps[i], part, tensors))
        for i in reversed(range(len(stages) - 1)):
            tensors = timed(i, partial(stages[i].backward, steps[i], part, tensors))
    for i, stage in enumerate(stages):
        timed(i, partial(stage.apply, steps[i]))
    torch.cuda.synchronize()
    spent = [0.0] * len(stages)
    for which, before, after in marks:
        spent[which] += before.elapsed_time(after) / 1e3
    return spent


def crossing_s(
    chain: Chain, batches: Sequence[Batch], settings: Settings, *, units: int, effort: Effort
) -> Times | None:
    """Times of the leading embedding layers on `units` cores whose rows cross to a GPU; None if there are none.

    Rows that a GPU reads are pulled and pushed another way than those that cores read: distinct ones, into pinned
    memory.
    """
    leading = len(list(itertools.takewhile(lambda layer: isinstance(layer, SparseEmbedding), chain.layers)))
    if not leading or leading == len(chain.layers):
        return None
    with threads(units):
        bind_tables(chain, seed=settings.seed, threads=units)
        specs = [
            StageSpec(0, 0, leading - 1, "cpu", units, torch.device("cpu"), units),
            StageSpec(1, leading, len(chain.layers) - 1, "gpu", 1, torch.device("cuda", 0), 1),
        ]
        stage = build_stages(chain, specs, shared_pushes(chain, chain.tables), settings, lambda *_: None, ahead=0)[0]
        found, until = [], time.perf_counter() + effort.seconds
        for number, batch in enumerate(itertools.cycle(batches)):
            seconds = _crossing_step(stage, number, batch, settings.micro_batches)
            if number >= WARM_UP_STEPS:
                found.append(seconds)
            if len(found) >= effort.steps or (time.perf_counter() > until and len(found) >= effort.least):
                break
        for layer in chain.layers:
            layer.to("cpu")
    work = np.array([layer.dim for layer in chain.embeddings[:leading]], dtype=float)
    return Times(np.array(found)[:, None] * (work / work.sum())[None, :])


def _crossing_step(stage: Stage, number: int, batch: Batch, micro_batches: int) -> float:
    own = {name: batch[name] for name in stage.reads}
    size = batch_size(batch)
    parts = max(1, min(micro_batches, size))
    step = Step(number, own, [size * part // parts for part in range(parts + 1)])
    began = time.perf_counter()
    stage.begin(step, stage.prepare(own))
    sent = [stage.forward(step, part, {}) for part in range(parts)]
    spent = time.perf_counter() - began
    grads = [{n: torch.zeros_like(v.rows if isinstance(v, Lookup) else v) for n, v in part.items()} for part in sent]
    began = time.perf_counter()
    for part, given in enumerate(grads):
        stage.backward(step, part, given)
    stage.apply(step)
    return spent + time.perf_counter() - began
