"""Times of single layers: a step of training, each layer as a stage of its own, one after the other in one thread.

The stages are those of the runtime, so what is measured is what will run: rows are pulled and pushed, micro-batches
cut, weights updated, scores counted. Batches come from the real data, read in the background as in a run, so that
reading takes its share of the cores here too.
"""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from heterps.models import Chain
from heterps.models.batch import Bags, Batch, batch_size
from heterps.runtime.build import build_stages
from heterps.runtime.memory import keep_freed_memory
from heterps.runtime.placement import StageSpec
from heterps.runtime.settings import Settings
from heterps.runtime.stage import Stage, Step
from heterps.runtime.tables import bind_tables, shared_pushes
from heterps.store import SparseTable
from heterps.telemetry.metrics import Auc

WARM_UP_STEPS = 3
"""First steps fill caches and pools of memory, and make most rows (measured: from the fourth on times are level)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure: until `steps` are timed or `seconds` are over, but at least `least` steps."""

    steps: int = 15
    seconds: float = 4.0
    least: int = 3


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of each layer in each timed step: [steps, layers]."""

    seconds: NDArray[np.float64]

    @property
    def median(self) -> NDArray[np.float64]:
        """Of each layer."""
        return np.asarray(np.median(self.seconds, axis=0))

    @property
    def spread(self) -> NDArray[np.float64]:
        """Half the distance between the quartiles, as a share of the median; 0 for a layer that takes no time."""
        low, high = np.percentile(self.seconds, [25, 75], axis=0)
        return np.asarray((high - low) / 2 / np.maximum(self.median, 1e-12))


def unbound(chain: Chain) -> Chain:
    """A copy of the chain without tables, so that measuring changes nothing."""
    tables = {id(layer.table): None for layer in chain.embeddings if layer.table is not None}
    return copy.deepcopy(chain, tables)


def fill_tables(chain: Chain, batches: Iterator[Batch], *, seconds: float) -> int:
    """Makes the rows of the ids that come within so many seconds; gives the samples that were read.

    A new table would be measured with its rows in the caches and most ids new, as no long run has it.
    """
    until, samples = time.perf_counter() + seconds, 0
    for batch in batches:
        for layer in chain.embeddings:
            ids = layer.ids_of(batch)
            if isinstance(layer.table, SparseTable):
                layer.table.pull(ids.ids if isinstance(ids, Bags) else ids)
        samples += batch_size(batch)
        if time.perf_counter() > until:
            break
    return samples


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it PyTorch computes with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def sweep(chain: Chain, batches: Iterator[Batch], *, units: int, settings: Settings, effort: Effort) -> Times:
    """Times the layers on `units` cores. Trains the chain as it goes; its tables must not be bound by others.

    Args:
        chain: a copy that may be trained; tables that are bound keep their rows.
        batches: at least `WARM_UP_STEPS + 1`; a batch of another size than the first is left out.
        units: cores: threads of computing and of the tables.
        settings: micro-batches, precision and optimizer of the run.
        effort: how long to measure.
    """
    keep_freed_memory()
    with threads(units):
        bind_tables(chain, seed=settings.seed, threads=units)
        stages = make_stages(chain, settings, units)
        found: list[list[float]] = []
        size, until = 0, float("inf")
        numbers = itertools.count()
        for batch in batches:
            size = size or batch_size(batch)
            if batch_size(batch) != size:
                continue
            number = next(numbers)
            seconds = run_step(stages, number, batch, settings.micro_batches)
            if number == WARM_UP_STEPS - 1:
                until = time.perf_counter() + effort.seconds
            if number >= WARM_UP_STEPS:
                found.append(seconds)
            enough = len(found) >= effort.steps or time.perf_counter() > until
            if enough and len(found) >= effort.least:
                break
    return Times(np.array(found))


def make_stages(chain: Chain, settings: Settings, units: int) -> list[Stage]:
    """A stage for each layer, on the CPU."""
    cpu = torch.device("cpu")
    specs = [StageSpec(number, number, number, "cpu", units, cpu, units) for number in range(len(chain.layers))]
    auc = Auc()
    return build_stages(chain, specs, shared_pushes(chain, chain.tables), settings, auc.update, ahead=0)


def run_step(stages: Sequence[Stage], number: int, batch: Batch, micro_batches: int) -> list[float]:
    """One step through all stages; gives the seconds of each."""
    spent = [0.0] * len(stages)
    steps = []
    size = batch_size(batch)
    parts = max(1, min(micro_batches, size))
    bounds = [size * part // parts for part in range(parts + 1)]
    for i, stage in enumerate(stages):
        own = {name: batch[name] for name in stage.reads}
        steps.append(Step(number, own, bounds))
        with _clock(spent, i):
            stage.begin(steps[i], stage.prepare(steps[i]))
    for part in range(parts):
        tensors: dict[str, object] = {}
        for i, stage in enumerate(stages):
            with _clock(spent, i):
                tensors = stage.forward(steps[i], part, tensors)
        for i in reversed(range(len(stages) - 1)):
            with _clock(spent, i):
                tensors = stages[i].backward(steps[i], part, tensors)
    for i, stage in enumerate(stages):
        with _clock(spent, i):
            stage.apply(steps[i])
    return spent


@contextmanager
def _clock(spent: list[float], which: int) -> Iterator[None]:
    began = time.perf_counter()
    yield
    spent[which] += time.perf_counter() - began
