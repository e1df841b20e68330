"""Makes the stages of a run: for each stage of the plan, the kind that its device does best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from heterps.models import Chain, Layer
from heterps.models.layer import SparseEmbedding
from heterps.runtime.device import kernels
from heterps.runtime.device.graph import GraphStage
from heterps.runtime.device.replicas import ReplicatedStage
from heterps.runtime.device.rows import DeviceRows
from heterps.runtime.device.spread import SpreadRows
from heterps.runtime.device.table import DeviceTable, KernelTable
from heterps.runtime.exchange import Exchange, ExchangeStage
from heterps.runtime.placement import StageSpec, cores
from heterps.runtime.rows import DistinctRows, HostRows, Rows
from heterps.runtime.settings import Settings
from heterps.runtime.stage import Stage
from heterps.runtime.tables import Shared
from heterps.store import SparseTable

OnScore = Callable[[Tensor, Tensor], None]


def look_ahead(specs: Sequence[StageSpec]) -> int:
    """Batches to prepare ahead: more for a GPU, whose steps are short."""
    return 5 if any(spec.device.type == "cuda" for spec in specs) else 2


def build_stages(
    chain: Chain,
    specs: Sequence[StageSpec],
    shared: Shared,
    settings: Settings,
    on_score: OnScore,
    *,
    ahead: int,
    exchanges: bool = False,
) -> list[Stage]:
    """The stages, their modules on their devices. With `exchanges`, the first one may only start pulls and pushes."""
    context = _Context(chain, specs, shared, settings, on_score, ahead, exchanges)
    return [context.stage(spec) for spec in specs]


def build_stage(
    spec: StageSpec,
    chain: Chain,
    specs: Sequence[StageSpec],
    shared: Shared,
    settings: Settings,
    on_score: OnScore,
    *,
    ahead: int,
) -> Stage:
    """One of the stages, with its own tables in `shared`."""
    return _Context(chain, specs, shared, settings, on_score, ahead, exchanges=False).stage(spec)


@dataclass(frozen=True, slots=True)
class _Context:
    chain: Chain
    specs: Sequence[StageSpec]
    shared: Shared
    settings: Settings
    on_score: OnScore
    ahead: int
    exchanges: bool

    def stage(self, spec: StageSpec) -> Stage:
        options: dict[str, Any] = {
            "optimizer": self.settings.make_optimizer, "precision": self.settings.dtype, "on_score": self.on_score,
            "keep_weights_version": self.settings.steps_ahead > 0,
        }  # fmt: skip
        if self._only_exchanges(spec):
            return ExchangeStage(spec, self.chain, [], exchanges=self._exchanges(spec), **options)
        rows = self._rows(spec)
        if spec.others:
            return ReplicatedStage(spec, self.chain, rows, **options)
        if not self._as_graph(spec, rows):
            return Stage(spec, self.chain, rows, **options)
        return GraphStage(
            spec, self.chain, rows, buffers=self.settings.steps_ahead + self.ahead + 2,
            clip_norm=self.settings.clip_norm, scheduled=self.settings.schedule is not None, **options,
        )  # fmt: skip

    def _only_exchanges(self, spec: StageSpec) -> bool:
        """Rows that only cross, whole batches at once, of tables here that nobody else uses."""
        layers = self._layers(spec)
        if not self.exchanges or spec.number > 0 or self.settings.micro_batches > 1:
            return False
        return all(
            isinstance(layer, SparseEmbedding)
            and self._only_crosses(spec, layer)
            and isinstance(self.shared[layer.table_name].table, SparseTable)
            and self.shared[layer.table_name].users == 1
            for layer in layers
        )

    def _exchanges(self, spec: StageSpec) -> list[Exchange]:
        found = []
        for layer in self._layers(spec):
            assert isinstance(layer, SparseEmbedding)
            table = self.shared[layer.table_name].table
            assert isinstance(table, SparseTable)
            found.append(Exchange(layer, table, staleness=self.settings.steps_ahead))
        return found

    def _as_graph(self, spec: StageSpec, rows: Sequence[Rows]) -> bool:
        """A graph updates at once: that needs the loss, rows on the device, and no other stage's gradient norms."""
        if spec.device.type != "cuda" or spec is not self.specs[-1] or self.settings.micro_batches > 1:
            return False
        if not kernels.available():
            return False
        alone = not any(list(layer.parameters()) for layer in self.chain.layers[: spec.first])
        fit = all(isinstance(some, DeviceRows) and isinstance(some.table, KernelTable) for some in rows)
        return fit and (alone or self.settings.clip_norm is None)

    def _rows(self, spec: StageSpec) -> list[Rows]:
        layers = [layer for layer in self._layers(spec) if isinstance(layer, SparseEmbedding)]
        on_device = [name for name in dict.fromkeys(layer.table_name for layer in layers) if self._lives_on(spec, name)]
        rows: list[Rows] = []
        for name in on_device:
            table = self.shared[name].table
            assert isinstance(table, SparseTable)
            users = [layer for layer in layers if layer.table_name == name]
            rows.append(self._on_device(spec, users, table))
        staleness = self.settings.steps_ahead
        for layer in layers:
            shared = self.shared[layer.table_name]
            if layer.table_name in on_device:
                continue
            if self._only_crosses(spec, layer):
                whole = self.settings.micro_batches == 1
                rows.append(DistinctRows(layer, shared, staleness=staleness, whole=whole))
            else:
                spare = sum(other.threads for other in self.specs if other.device.type == "cpu") < cores()
                rows.append(HostRows(layer, shared, staleness=staleness, look_ahead=spare))
        return rows

    def _on_device(self, spec: StageSpec, layers: Sequence[SparseEmbedding], table: SparseTable) -> Rows:
        kind, count = self._kind_of_table(spec), len(spec.devices)
        if count == 1:
            return DeviceRows(layers, kind(table, spec.device))
        return SpreadRows(layers, [kind(table, device, share=(n, count)) for n, device in enumerate(spec.devices)])

    def _kind_of_table(self, spec: StageSpec) -> type[DeviceTable]:
        return KernelTable if spec.device.type == "cuda" and kernels.available() else DeviceTable

    def _layers(self, spec: StageSpec) -> Sequence[Layer]:
        return self.chain.layers[spec.first : spec.last + 1]

    def _lives_on(self, spec: StageSpec, table: str) -> bool:
        """A table lies in a GPU's memory if it is this process's, used by no other stage, and without a life cycle."""
        if spec.device.type != "cuda":
            return False
        held, own = self.shared[table].table, self._layers(spec)
        users = [layer for layer in self.chain.embeddings if layer.table_name == table]
        return isinstance(held, SparseTable) and not held.config.tracks and all(user in own for user in users)

    def _only_crosses(self, spec: StageSpec, layer: SparseEmbedding) -> bool:
        """Rows that only a GPU in the next stage reads cross as distinct ones."""
        following = self.specs[spec.number + 1] if spec.number + 1 < len(self.specs) else None
        if (
            following is None
            or following.device.type != "cuda"
            or spec.device.type != "cpu"
            or layer.pooling is not None
        ):
            return False
        readers = [number for number, other in enumerate(self.chain.layers) if layer.writes[0] in other.reads]
        return all(number > spec.last for number in readers) and layer.writes[0] not in self.chain.alive(
            following.last + 1
        )
