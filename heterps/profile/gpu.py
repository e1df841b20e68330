"""Times of layers on a GPU.

A stage on a GPU is recorded as one graph where it can be, so that what a layer costs there cannot be seen from the
host. What is measured instead are whole stages as they will run (`heterps.profile.probe`): all layers on the GPU, and
all but the rows (`mixed_s`). The difference is the rows' share. How the rest is divided among the dense layers is told
by their kernels (`dense_s`): events around each layer's calls, in a stream that waits until all calls are queued, so
that the host's slowness does not count.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from heterps.models import Chain
from heterps.models.batch import Batch, batch_size
from heterps.models.layer import SparseEmbedding
from heterps.profile.probe import CPU_TYPE, GPU_TYPE, plan_of, probe
from heterps.profile.sweep import WARM_UP_STEPS, Effort, Times, threads
from heterps.runtime.build import build_stages
from heterps.runtime.placement import StageSpec
from heterps.runtime.rows import Lookup
from heterps.runtime.settings import Settings
from heterps.runtime.stage import Stage, Step
from heterps.runtime.tables import bind_tables, shared_pushes

MIXED_STALENESS = 4
"""Steps that the cores run ahead of the GPU: enough to hide the way there and back (measured on an H200)."""
WAIT_CYCLES = 100_000_000
"""A GPU's cycles that calls are queued in: some 60 ms, more than the calls of a step take (measured: under 20 ms)."""


def mixed_s(
    make: Callable[[], Chain], batches: Sequence[Batch], settings: Settings, *, units: int, effort: Effort
) -> tuple[float, float] | None:
    """Seconds of a step by the plan with the leading embedding layers on `units` cores and the rest on the GPU.

    Of the cores' stage and of the GPU's; what the pipeline takes longer than the slower one is that one's. None if the
    chain has no such embedding layers.
    """
    chain = make()
    leading = leading_embeddings(chain)
    if not leading:
        return None
    plan = plan_of([(CPU_TYPE, "cpu", leading, units), (GPU_TYPE, "cuda", len(chain.layers) - leading, 1)])
    ahead = replace(settings, mode="async", staleness=max(MIXED_STALENESS, settings.steps_ahead))
    found = probe(make, batches, plan, ahead, effort)
    cores_s, gpu_s = found.stage_s
    return (found.step_s, gpu_s) if cores_s >= gpu_s else (cores_s, found.step_s)


def leading_embeddings(chain: Chain) -> int:
    """Embedding layers before the first other one; 0 if there is nothing else."""
    leading = len(list(itertools.takewhile(lambda layer: isinstance(layer, SparseEmbedding), chain.layers)))
    return leading if leading < len(chain.layers) else 0


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
        fed = Step(number, own, bounds)
        stage.begin(fed, stage.prepare(fed))
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
    leading = leading_embeddings(chain)
    if not leading:
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
    stage.begin(step, stage.prepare(step))
    sent = [stage.forward(step, part, {}) for part in range(parts)]
    spent = time.perf_counter() - began
    grads = [{n: torch.zeros_like(v.rows if isinstance(v, Lookup) else v) for n, v in part.items()} for part in sent]
    began = time.perf_counter()
    for part, given in enumerate(grads):
        stage.backward(step, part, given)
    stage.apply(step)
    return spent + time.perf_counter() - began
