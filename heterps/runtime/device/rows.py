"""The rows of embedding layers whose table lies in a device's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heterps.models import Bags
from heterps.models.batch import Value
from heterps.models.layer import SparseEmbedding
from heterps.runtime.device.table import DeviceTable


@dataclass(slots=True)
class _Step:
    slots: Tensor
    rows: Tensor
    """The distinct rows, a leaf: gradients of all layers and micro-batches are summed into it."""
    numbers: tuple[Tensor, ...]
    """For each layer, the number of the row of each of its ids."""
    ids: list[Value]


class DeviceRows:
    """All layers of a stage that read one table, whose rows lie on the stage's device."""

    def __init__(self, layers: Sequence[SparseEmbedding], table: DeviceTable) -> None:
        self.layers = tuple(layers)
        self.table = table
        self._steps: dict[int, _Step] = {}

    def prepare(self, step: int, batch: Mapping[str, Value]) -> Any:
        """Looks the ids of all layers up together, so that a row is updated once a step."""
        flat = [flat_ids(ids) for ids in ids_of(self.layers, batch)]
        return self.table.prepare(flat[0].contiguous() if len(flat) == 1 else torch.cat(flat))

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Any) -> None:
        """See `Rows.pull`."""
        ids = ids_of(self.layers, batch)
        slots, number = self.table.lookup(prepared)
        rows = self.table.rows(slots).requires_grad_()
        numbers = torch.split(number, [len(flat_ids(value)) for value in ids])
        self._steps[step] = _Step(slots, rows, numbers, ids)

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int, device: torch.device) -> Tensor:
        """See `Rows.part`; the device is the table's."""
        held, which = self._steps[step], self.layers.index(layer)
        return written(layer, held.rows, held.numbers[which], held.ids[which], start, stop)

    def collect(self, step: int) -> None:
        """Gradients are summed by autograd."""

    def push(self, step: int) -> None:
        """See `Rows.push`."""
        held = self._steps.pop(step)
        if held.rows.grad is not None:
            with torch.no_grad():
                self.table.update(held.slots, held.rows.grad.float())

    def set_lr(self, factor: float) -> None:
        """See `Rows.set_lr`."""
        self.table.set_lr(self.layers[0].options["lr"] * factor)

    def flush(self) -> None:
        """See `Rows.flush`."""
        self.table.flush()


def ids_of(layers: Sequence[SparseEmbedding], batch: Mapping[str, Value]) -> list[Value]:
    """What each layer looks up."""
    return [layer.ids_of(batch) for layer in layers]


def flat_ids(ids: Value) -> Tensor:
    """One after the other, those of bags too."""
    return (ids.ids if isinstance(ids, Bags) else ids).reshape(-1)


def written(layer: SparseEmbedding, rows: Tensor, number: Tensor, ids: Value, start: int, stop: int) -> Tensor:
    """What a layer writes for the samples start … stop: each id's row, of distinct ones, or the bags' pooled ones.

    Args:
        layer: whose ids these are.
        rows: [U, dim].
        number: of each id of the batch, that of its row.
        ids: of the batch.
        start: the first sample.
        stop: the one after the last.
    """
    if not isinstance(ids, Bags):
        each = len(number) // max(1, len(ids))
        return layer.shaped(rows.index_select(0, number[start * each : stop * each]), ids[start:stop])
    cut = ids.offsets[start * ids.slots : stop * ids.slots + 1]
    first, last = int(cut[0]), int(cut[-1])
    chosen = rows.index_select(0, number[first:last])
    sizes = cut.diff().to(rows.device)
    bags = torch.arange(len(sizes), device=rows.device).repeat_interleave(sizes, output_size=last - first)
    sums = torch.zeros(len(sizes), layer.dim, device=rows.device).index_add(0, bags, chosen)
    pooled = sums / sizes.clamp(min=1).unsqueeze(1) if layer.pooling == "mean" else sums
    return layer.shaped(pooled, ids[start:stop])
