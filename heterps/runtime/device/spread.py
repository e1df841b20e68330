"""The rows of a table that is spread over the memories of several devices, each with the ids of its share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heterps.models.batch import Value
from heterps.models.layer import SparseEmbedding
from heterps.ps.shards import grouped
from heterps.runtime.device.rows import flat_ids, ids_of, written
from heterps.runtime.device.table import DeviceTable


@dataclass(slots=True)
class _Share:
    """The distinct rows of a step that one device has."""

    slots: Tensor
    rows: Tensor
    number: Tensor
    """Of each of its ids, that of its row."""


@dataclass(slots=True)
class _Step:
    shares: list[_Share | None]
    place: Tensor
    """Of each id, its place where ids are grouped by share."""
    ids: list[Value]
    here: dict[torch.device, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """On each device that asked: all distinct rows, a leaf, and the number of each id's own."""


class SpreadRows:
    """All layers of a stage that read one table, of which each of the stage's devices has a share.

    A step's distinct rows go from their device to each that computes, and their summed gradients back.
    """

    def __init__(self, layers: Sequence[SparseEmbedding], tables: Sequence[DeviceTable]) -> None:
        """Takes the shares over, in the order of their numbers."""
        self.layers = tuple(layers)
        self._tables = tuple(tables)
        self._steps: dict[int, _Step] = {}

    def prepare(self, step: int, batch: Mapping[str, Value]) -> tuple[list[Any], Tensor]:
        """Splits the ids, and has each share look up its own; a share without ids has None."""
        ids = torch.cat([flat_ids(value) for value in ids_of(self.layers, batch)])
        split = grouped(ids.numpy(), len(self._tables))
        assert split.place is not None
        own = [torch.from_numpy(split.ids[start:stop]) for start, stop in pairwise(split.bounds)]
        prepared = [table.prepare(some) if len(some) else None for table, some in zip(self._tables, own, strict=True)]
        return prepared, torch.from_numpy(split.place.view(np.int32))

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Any) -> None:
        """See `Rows.pull`."""
        own, place = prepared
        shares = [
            None if some is None else self._looked_up(table, some)
            for table, some in zip(self._tables, own, strict=True)
        ]
        self._steps[step] = _Step(shares, place, ids_of(self.layers, batch))

    def _looked_up(self, table: DeviceTable, prepared: Any) -> _Share:
        with _current(table):
            slots, number = table.lookup(prepared)
            return _Share(slots, table.rows(slots), number)

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int, device: torch.device) -> Tensor:
        """See `Rows.part`."""
        held, which = self._steps[step], self.layers.index(layer)
        if device not in held.here:
            held.here[device] = self._brought(held, device)
        rows, number = held.here[device]
        own = torch.split(number, [len(flat_ids(value)) for value in held.ids])[which]
        return written(layer, rows, own, held.ids[which], start, stop)

    def _brought(self, held: _Step, device: torch.device) -> tuple[Tensor, Tensor]:
        """The distinct rows of all shares one after the other, and which of them is each id's."""
        numbers = [torch.empty(0, dtype=torch.int32, device=device)]
        rows, before = [torch.empty(0, self.layers[0].dim, device=device)], 0
        for share in held.shares:
            if share is not None:
                numbers.append(share.number.to(device) + before)
                rows.append(share.rows.to(device))
                before += len(share.rows)
        return torch.cat(rows).requires_grad_(), torch.cat(numbers).index_select(0, held.place.to(device))

    def collect(self, step: int) -> None:
        """Gradients are summed by autograd, on each device."""

    def push(self, step: int) -> None:
        """See `Rows.push`."""
        held = self._steps.pop(step)
        grads = [rows.grad for rows, _ in held.here.values() if rows.grad is not None]
        before = 0
        for table, share in zip(self._tables, held.shares, strict=True):
            if share is None:
                continue
            own = [grad[before : before + len(share.rows)].to(table.device).float() for grad in grads]
            before += len(share.rows)
            if own:
                with torch.no_grad(), _current(table):
                    table.update(share.slots, own[0] if len(own) == 1 else torch.stack(own).sum(0))

    def set_lr(self, factor: float) -> None:
        """See `Rows.set_lr`."""
        for table in self._tables:
            table.set_lr(self.layers[0].options["lr"] * factor)

    def flush(self) -> None:
        """See `Rows.flush`."""
        for table in self._tables:
            with _current(table):
                table.flush()


def _current(table: DeviceTable) -> AbstractContextManager[Any]:
    """Within it, kernels run on the table's device."""
    return torch.cuda.device(table.device) if table.device.type == "cuda" else nullcontext()
