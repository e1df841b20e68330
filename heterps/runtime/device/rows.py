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
    samples: int
    ids: list[Value]


class DeviceRows:
    """All layers of a stage that read one table, whose rows lie on the stage's device."""

    def __init__(self, layers: Sequence[SparseEmbedding], table: DeviceTable) -> None:
        self.layers = tuple(layers)
        self.table = table
        self._steps: dict[int, _Step] = {}

    def ids(self, batch: Mapping[str, Value]) -> list[Value]:
        """What each layer looks up."""
        return [layer.ids_of(batch) for layer in self.layers]

    def prepare(self, step: int, batch: Mapping[str, Value]) -> Any:
        """Looks the ids of all layers up together, so that a row is updated once a step."""
        flat = [_flat(ids) for ids in self.ids(batch)]
        return self.table.prepare(flat[0].contiguous() if len(flat) == 1 else torch.cat(flat))

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Any) -> None:
        """See `Rows.pull`."""
        ids = self.ids(batch)
        slots, number = self.table.lookup(prepared)
        rows = self.table.rows(slots).requires_grad_()
        numbers = torch.split(number, [len(_flat(value)) for value in ids])
        self._steps[step] = _Step(slots, rows, numbers, len(ids[0]), ids)

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int) -> Tensor:
        """See `Rows.part`."""
        held, which = self._steps[step], self.layers.index(layer)
        ids, number = held.ids[which], held.numbers[which]
        if not isinstance(ids, Bags):
            each = len(number) // max(1, held.samples)
            rows = held.rows.index_select(0, number[start * each : stop * each])
            return layer.shaped(rows, ids[start:stop])
        cut = ids.offsets[start * ids.slots : stop * ids.slots + 1]
        first, last = int(cut[0]), int(cut[-1])
        rows = held.rows.index_select(0, number[first:last])
        sizes = cut.diff().to(rows.device)
        bags = torch.arange(len(sizes), device=rows.device).repeat_interleave(sizes, output_size=last - first)
        sums = torch.zeros(len(sizes), layer.dim, device=rows.device).index_add(0, bags, rows)
        pooled = sums / sizes.clamp(min=1).unsqueeze(1) if layer.pooling == "mean" else sums
        return layer.shaped(pooled, ids[start:stop])

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


def _flat(ids: Value) -> Tensor:
    return (ids.ids if isinstance(ids, Bags) else ids).reshape(-1)
