"""Measures a chain on this machine: every layer on one, two and more cores and on the GPU, links, reading."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from heterps.errors import InvalidInput
from heterps.models import Chain
from heterps.models.batch import Batch, batch_size
from heterps.models.layer import SparseEmbedding
from heterps.profile import gpu
from heterps.profile.count import Count, count_layers, dense_state_bytes
from heterps.profile.fit import fit_overhead
from heterps.profile.hardware import here, measure_core
from heterps.profile.links import Served, measure_links, measure_served
from heterps.profile.measurement import LayerTimes, Measurement
from heterps.profile.others import watch_others
from heterps.profile.probe import CPU_TYPE, GPU_TYPE, plan_of, probe
from heterps.profile.sweep import Effort, Times, fill_tables, make_stages, run_step, sweep, unbound
from heterps.runtime.feed import Feed
from heterps.runtime.settings import Settings
from heterps.runtime.tables import bind_tables

OnProgress = Callable[[str, float], None]
"""Called with what is being measured and the share that is done."""

SMALL_SHARE = 8
"""The small batch is this part of the real one."""
COUNTED_SAMPLES = 64
HELD_BATCHES = 8
"""Batches kept in memory for what must not wait for reading."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Efforts:
    """How long the parts of a measurement take, in seconds; a whole one for ctrdnn on two cores about 40."""

    layers: Effort = field(default_factory=Effort)
    small: Effort = field(default_factory=lambda: Effort(steps=15, seconds=1.5))
    whole: Effort = field(default_factory=lambda: Effort(seconds=4.0))
    fill_s: float = 1.0
    reading_s: float = 1.0
    core_s: float = 0.5


def measure(
    chain: Chain,
    data: Any,
    settings: Settings,
    *,
    key: str = "",
    served: bool = True,
    efforts: Efforts = Efforts(),  # noqa: B008
    on_progress: OnProgress = lambda *_: None,
) -> Measurement:
    """Measures a chain; neither it nor its tables are changed.

    Args:
        chain: the model.
        data: a source, or batches that can be read again and again, of at least one full batch.
        settings: of the run that is to be planned: batch size, micro-batches, precision, optimizer.
        key: what the measurement is kept under.
        served: whether to measure tables on a parameter server too.
        efforts: how long to measure.
        on_progress: told what goes on.
    """
    return _Measuring(chain, data, settings, efforts, on_progress).run(key, served=served)


def unit_counts(cores: int) -> list[int]:
    """1, 2, 4, … and all cores."""
    return sorted({2**power for power in range(cores.bit_length()) if 2**power <= cores} | {cores})


class _Measuring:
    def __init__(self, chain: Chain, data: Any, settings: Settings, efforts: Efforts, on_progress: OnProgress) -> None:
        self._original, self._data, self._settings, self._efforts = chain, data, settings, efforts
        self._on_progress = on_progress
        self._hardware = here()

    def run(self, key: str, *, served: bool) -> Measurement:
        units, others = unit_counts(self._hardware.cores), watch_others()
        self._say("reading", 0.0)
        data_s, batches = self._read()
        self._chain = self._with_rows(1)
        some, precision = _first(batches[0], COUNTED_SAMPLES), self._settings.dtype
        counts = count_layers(self._chain, some, samples=batch_size(batches[0]), precision=precision)
        by_units: dict[int, Times] = {}
        for done, count in enumerate(units):
            self._say(f"layers on {count} {'core' if count == 1 else 'cores'}", 0.1 + 0.45 * done / len(units))
            by_units[count] = self._sweep(count, self._efforts.layers)
        self._say("a whole step", 0.55)
        by_units[units[-1]] = self._as_run(units[-1], by_units[units[-1]])
        overheads = self._overheads(batches, by_units[1])
        state = self._state_bytes(batches[0])
        on_gpu, crossing = self._gpu(batches, units) if self._hardware.gpus else (None, None)
        self._say("links", 0.8)
        links = measure_links()
        self._say("parameter server", 0.9)
        serving = measure_served(self._chain.embeddings, batches[:3]) if served and self._chain.embeddings else {}
        self._say("rates of a core", 0.97)
        hardware = self._hardware.model_copy(update={"core": measure_core(seconds=self._efforts.core_s)})
        layers = [
            _layer(count, by_units, i, overheads[i], state[i], on_gpu, crossing, serving.get(count.name))
            for i, count in enumerate(counts)
        ]
        return Measurement(
            key=key, model=self._original.name, batch_size=batch_size(batches[0]), precision=self._settings.precision,
            micro_batches=self._settings.micro_batches, hardware=hardware, links=links, data_s=data_s,
            layers=tuple(layers), others_share=others(),
        )  # fmt: skip

    def _say(self, what: str, share: float) -> None:
        self._on_progress(what, share)

    @contextmanager
    def _feed(self) -> Iterator[Iterator[Batch]]:
        settings = self._settings
        with Feed(self._data, batch_size=settings.batch_size, epochs=None, seed=settings.seed) as feed:
            yield (read.batch for read in feed)

    def _read(self) -> tuple[float, list[Batch]]:
        """Seconds of reading a batch, and some full batches."""
        if isinstance(self._data, Iterator):
            raise InvalidInput("data: these batches can be read only once; give a list of them, or a source")
        batches: list[Batch] = []
        with self._feed() as feed:
            first = next(feed, None)
            if first is None:
                raise InvalidInput("data: there are no rows")
            batches.append(first)
            began, until, count = time.perf_counter(), time.perf_counter() + self._efforts.reading_s, 0
            for batch in feed:
                count += 1
                if len(batches) < HELD_BATCHES and batch_size(batch) == batch_size(first):
                    batches.append(batch)
                if time.perf_counter() > until:
                    break
            seconds = (time.perf_counter() - began) / max(count, 1)
        self._original.check_batch(first)
        return (seconds if hasattr(self._data, "reader") else 0.0), batches

    def _sweep(self, units: int, effort: Effort) -> Times:
        chain = self._with_rows(units)
        with self._feed() as feed:
            return sweep(chain, feed, units=units, settings=self._settings, effort=effort)

    def _with_rows(self, units: int) -> Chain:
        """A copy of the chain with filled tables, which use so many threads."""
        chain = unbound(self._original)
        bind_tables(chain, seed=self._settings.seed, threads=units)
        with self._feed() as feed:
            fill_tables(chain, feed, seconds=self._efforts.fill_s)
        return chain

    def _overheads(self, batches: Sequence[Batch], real: Times) -> list[float]:
        """Seconds of a micro-batch on one core that do not grow with its samples."""
        size = batch_size(batches[0])
        parts = self._settings.micro_batches
        small = min(size, max(size // SMALL_SHARE, parts))  # both batches are cut into as many micro-batches
        settings = replace(self._settings, batch_size=small)
        cut = itertools.cycle([_first(batch, small) for batch in batches])
        times = sweep(self._chain, cut, units=1, settings=settings, effort=self._efforts.small)
        parts = min(parts, size)
        return [fit_overhead(small, s, size, r).fixed_s / parts for s, r in zip(times.median, real.median, strict=True)]

    def _state_bytes(self, batch: Batch) -> list[int]:
        """Of each layer: rows and their state as the table holds them, weights and the optimizer's state."""
        stages = make_stages(self._chain, self._settings, 1)
        run_step(stages, 0, batch, self._settings.micro_batches)
        users = [layer.table_name for layer in self._chain.embeddings]
        state = []
        for layer, stage in zip(self._chain.layers, stages, strict=True):
            if isinstance(layer, SparseEmbedding):
                state.append(layer.table.stats().bytes // users.count(layer.table_name))  # type: ignore[union-attr]
            else:
                state.append(dense_state_bytes(layer, stage.optimizer))
        return state

    def _as_run(self, units: int, times: Times) -> Times:
        """The layers' times, stretched to what the whole chain takes as one stage of a run."""
        plan = plan_of([(CPU_TYPE, "cpu", len(self._original.layers), units)])
        whole = probe(lambda: self._with_rows(units), self._data, plan, self._settings, self._efforts.whole)
        return Times(times.seconds * (whole.step_s / times.median.sum()))

    def _gpu(self, batches: Sequence[Batch], units: Sequence[int]) -> tuple[list[float], dict[int, Times] | None]:
        self._say("layers on the GPU", 0.6)
        effort, settings, chain = self._efforts.layers, self._settings, self._original
        plan = plan_of([(GPU_TYPE, "cuda", len(chain.layers), 1)])
        whole_s = probe(lambda: unbound(chain), batches, plan, settings, effort).step_s
        shares = gpu.dense_s(unbound(chain), batches, settings, effort)
        most = max(1, units[-1] - 1)  # one core is the GPU's
        mixed = gpu.mixed_s(lambda: self._with_rows(most), batches, settings, units=most, effort=effort)
        if mixed is None:
            return share_of_whole(whole_s, sum(share for share in shares if share is not None), shares), None
        on_cores_s, on_gpu_s = mixed
        crossing = {}
        for count in {*units[:-1], most}:
            times = gpu.crossing_s(self._with_rows(count), batches, settings, units=count, effort=self._efforts.small)
            assert times is not None
            crossing[count] = times
        stretch = on_cores_s / crossing[most].median.sum()
        crossing = {count: Times(times.seconds * stretch) for count, times in crossing.items()}
        return share_of_whole(whole_s, on_gpu_s, shares), crossing


def share_of_whole(whole_s: float, dense_s: float, shares: Sequence[float | None]) -> list[float]:
    """Seconds of each layer that add up to the whole: `dense_s` are the dense layers', in proportion to their shares.

    What they leave is the rows' (None in `shares`), at least a twentieth of the whole.
    """
    rows = shares.count(None)
    left = max(whole_s - dense_s, whole_s / 20) if rows else 0.0
    known = sum(share for share in shares if share is not None)
    scale = (whole_s - left) / known if known > 0 else 1.0
    return [left / rows if share is None else share * scale for share in shares]


def _layer(
    count: Count,
    by_units: Mapping[int, Times],
    number: int,
    overhead_s: float,
    state_bytes: int,
    on_gpu: Sequence[float] | None,
    crossing: Mapping[int, Times] | None,
    served: Served | None,
) -> LayerTimes:
    crosses = crossing is not None and number < crossing[1].seconds.shape[1]
    return LayerTimes(
        name=count.name, kind=count.kind, input_bytes=count.input_bytes, output_bytes=count.output_bytes,
        state_bytes=state_bytes, sharded=count.row_bytes > 0, flops=count.flops, moved_bytes=count.moved_bytes,
        random_bytes=count.random_bytes, parameter_bytes=count.parameter_bytes, exchanged_bytes=count.exchanged_bytes,
        cpu_s={str(units): float(times.median[number]) for units, times in by_units.items()},
        cpu_spread=float(by_units[1].spread[number]), overhead_s=overhead_s,
        crossing_s={str(k): float(t.median[number]) for k, t in crossing.items()} if crossing and crosses else None,
        gpu_s=on_gpu[number] if on_gpu is not None else None, served=served,
    )  # fmt: skip


def _first(batch: Batch, samples: int) -> Batch:
    return {name: value[:samples] for name, value in batch.items()}
