"""The rows of embedding layers whose table lies in the GPU's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from heterps.models import Bags
from heterps.models.batch import Value
from heterps.models.layer import SparseEmbedding
from heterps.runtime.device.table import DeviceTable


@dataclass(frozen=True, slots=True)
class Resolved:
    """The ids of a batch, looked up: on the host."""

    slots: Tensor
    """int32 [U]: of the distinct ids of all layers."""
    numbers: tuple[Tensor, ...]
    """For each layer, int32 [its ids]: the number of each id's slot."""
    offsets: tuple[Tensor | None, ...]
    """For each layer that reads bags, their offsets."""


@dataclass(slots=True)
class _Step:
    resolved: Resolved
    slots: Tensor
    rows: Tensor
    """The distinct rows, a leaf: gradients of all layers and micro-batches are summed into it."""
    numbers: tuple[Tensor, ...]
    samples: int


class DeviceRows:
    """All layers of a stage that read one table, whose rows lie on the stage's device."""

    def __init__(self, layers: Sequence[SparseEmbedding], table: DeviceTable) -> None:
        self.layers = tuple(layers)
        self.table = table
        self._steps: dict[int, _Step] = {}

    def prepare(self, batch: Mapping[str, Value]) -> Resolved:
        """Looks the ids of all layers up together, so that a row is updated once a step."""
        given = [layer.ids_of(batch) for layer in self.layers]
        flat = [(ids.ids if isinstance(ids, Bags) else ids).reshape(-1) for ids in given]
        together = flat[0].contiguous() if len(flat) == 1 else torch.cat(flat)
        slots = torch.empty(len(together), dtype=torch.int32)
        number = torch.empty(len(together), dtype=torch.int32)
        distinct = self.table.slots.resolve(together, slots, number)
        offsets = tuple(ids.offsets if isinstance(ids, Bags) else None for ids in given)
        return Resolved(slots[:distinct], torch.split(number, [len(ids) for ids in flat]), offsets)

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Resolved) -> None:
        """See `Rows.pull`."""
        self.table.upload_new()
        device = self.table.device
        slots = prepared.slots.to(device)
        rows = self.table.rows(slots).requires_grad_()
        samples = len(self.layers[0].ids_of(batch))
        self._steps[step] = _Step(prepared, slots, rows, tuple(n.to(device) for n in prepared.numbers), samples)

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int) -> Tensor:
        """See `Rows.part`."""
        held, which = self._steps[step], self.layers.index(layer)
        offsets, number = held.resolved.offsets[which], held.numbers[which]
        if offsets is None:
            each = len(number) // max(1, held.samples)
            rows = held.rows.index_select(0, number[start * each : stop * each])
            return rows.view(stop - start, -1, layer.dim)
        slots = (len(offsets) - 1) // max(1, held.samples)
        cut = offsets[start * slots : stop * slots + 1]
        first, last = int(cut[0]), int(cut[-1])
        rows = held.rows.index_select(0, number[first:last])
        sizes = cut.diff().to(rows.device)
        bags = torch.arange(len(sizes), device=rows.device).repeat_interleave(sizes, output_size=last - first)
        sums = torch.zeros(len(sizes), layer.dim, device=rows.device).index_add(0, bags, rows)
        pooled = sums / sizes.clamp(min=1).unsqueeze(1) if layer.pooling == "mean" else sums
        return pooled.view(stop - start, -1, layer.dim)

    def collect(self, step: int) -> None:
        """Gradients are summed by autograd."""

    def push(self, step: int) -> None:
        """See `Rows.push`."""
        held = self._steps.pop(step)
        if held.rows.grad is not None:
            with torch.no_grad():
                self.table.update(held.slots, held.rows.detach(), held.rows.grad.float())

    def set_lr(self, factor: float) -> None:
        """See `Rows.set_lr`."""
        self.table.set_lr(self.layers[0].options["lr"] * factor)

    def flush(self) -> None:
        """See `Rows.flush`."""
        self.table.flush()
