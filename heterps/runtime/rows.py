"""The rows of embedding layers during a run: looked up ahead, pulled and pushed for a whole batch at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from heterps import _native
from heterps.models import Bags
from heterps.models.batch import Value
from heterps.models.layer import SparseEmbedding
from heterps.runtime.tables import SharedPush
from heterps.store import SparseTable
from heterps.store.interface import Pooling


class Rows(Protocol):
    """The rows of one or more embedding layers of a stage.

    `prepare` runs ahead, in another thread, and needs no weights; the rest is called by the stage's thread, in order:
    pull, then for each micro-batch part and collect, then push.
    """

    @property
    def layers(self) -> Sequence[SparseEmbedding]:
        """Whose rows these are."""
        ...

    def prepare(self, batch: Mapping[str, Value]) -> Any:
        """Looks the ids of a batch up; what it gives is handed to `pull`."""
        ...

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Any) -> None:
        """Gets the rows of a whole batch, as the updates of earlier steps left them."""
        ...

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int) -> Any:
        """What the layer writes for the samples start … stop, with its gradient to be collected."""
        ...

    def collect(self, step: int) -> None:
        """The backward of the next micro-batch is done: takes its gradients."""
        ...

    def push(self, step: int) -> None:
        """Updates the rows of the batch once, by the gradients of all its micro-batches."""
        ...

    def set_lr(self, factor: float) -> None:
        """Learning rate of the pushes that follow: the layers' own times `factor`."""
        ...

    def flush(self) -> None:
        """Brings the host's table up to date."""
        ...


@dataclass(slots=True)
class _Step:
    ids: Any
    rows: Tensor
    """[B, slots, dim], as pulled."""
    leaves: list[Tensor] = field(default_factory=list)
    """Of the micro-batches between forward and backward."""
    grads: list[Tensor] = field(default_factory=list)
    """Of each micro-batch whose backward is done."""


class HostRows:
    """Rows of one layer that are pulled and pushed on the host, as they are; the stage may compute elsewhere."""

    def __init__(self, layer: SparseEmbedding, shared: SharedPush, device: torch.device, *, staleness: int = 0) -> None:
        self.layers = (layer,)
        self._layer, self._shared, self._device, self._staleness = layer, shared, device, staleness
        self._steps: dict[int, _Step] = {}

    def prepare(self, batch: Mapping[str, Value]) -> None:
        """Looks the ids up, if the table can."""
        ids = self._layer.ids_of(batch)
        prepare = getattr(self._shared.table, "prepare", None)
        if prepare is not None and isinstance(ids, Tensor):
            prepare(ids)

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Any) -> None:
        """See `Rows.pull`."""
        self._shared.wait_for(step - 1 - self._staleness)
        ids, table = self._layer.ids_of(batch), self._shared.table
        if isinstance(ids, Bags):
            pooling: Pooling = "mean" if self._layer.pooling == "mean" else "sum"
            rows = table.bag(ids.ids, ids.offsets[:-1], mode=pooling)
        else:
            rows = table.pull(ids)
        self._steps[step] = _Step(ids, self._layer.shaped(torch.as_tensor(rows), ids))

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int) -> Tensor:
        """See `Rows.part`."""
        held = self._steps[step]
        rows = held.rows if stop - start == len(held.rows) else held.rows[start:stop]
        leaf = rows.to(self._device).detach().requires_grad_()
        held.leaves.append(leaf)
        return leaf

    def collect(self, step: int) -> None:
        """See `Rows.collect`."""
        held = self._steps[step]
        leaf = held.leaves.pop(0)
        grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        held.grads.append(grad.to("cpu", torch.float32))

    def push(self, step: int) -> None:
        """See `Rows.push`."""
        done = self._steps.pop(step)
        whole = done.grads[0] if len(done.grads) == 1 else torch.cat(done.grads)
        shape = (-1, self._layer.dim) if isinstance(done.ids, Bags) else (*done.ids.shape, self._layer.dim)
        self._shared.push(step, done.ids, whole.reshape(shape), self._layer.pooling)

    def set_lr(self, factor: float) -> None:
        """See `Rows.set_lr`."""
        self._shared.table.set_lr(self._layer.options["lr"] * factor)

    def flush(self) -> None:
        """The table is always up to date."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows that cross to another device as the distinct ones, and for each id the number of its row among them."""

    rows: Tensor
    """[U, dim], in pinned memory if there is a GPU."""
    number: Tensor
    """int32, [samples · slots]."""
    shape: tuple[int, ...]
    """Of the tensor they stand for: [samples, slots, dim]."""


class DistinctRows:
    """Rows of one layer that the next stage reads on a GPU: only distinct ones cross, and their summed gradients.

    `part` gives a `Lookup`; the next stage sends back the gradient of its rows.
    """

    def __init__(self, layer: SparseEmbedding, shared: SharedPush, *, staleness: int = 0, pin: bool = True) -> None:
        self.layers = (layer,)
        self._layer, self._shared, self._staleness = layer, shared, staleness
        self._pin = pin
        self._batches: dict[int, Any] = {}
        self._pushes: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._waiting: dict[int, list[Tensor]] = {}

    def prepare(self, batch: Mapping[str, Value]) -> Any:
        """Numbers the distinct ids of the whole batch."""
        ids = self._layer.ids_of(batch)
        assert isinstance(ids, Tensor)
        return *self._distinct(ids.reshape(-1).contiguous()), ids.shape

    def _distinct(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct ids, and for each id its number among them."""
        unique = torch.empty(len(ids), dtype=torch.int64)
        number = torch.empty(len(ids), dtype=torch.int32, pin_memory=self._pin)
        return unique[: _native.distinct_into(ids, unique, number)], number

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Any) -> None:
        """Rows are pulled by micro-batch."""
        self._batches[step] = prepared
        self._pushes[step], self._waiting[step] = [], []

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int) -> Lookup:
        """Pulls the rows of a micro-batch."""
        if start == 0:
            self._shared.wait_for(step - 1 - self._staleness)
        unique, number, shape = self._batches[step]
        slots = number.numel() // shape[0] if shape[0] else 0
        if stop - start < shape[0]:
            unique, number = self._distinct(unique[number[start * slots : stop * slots].long()])
        rows = torch.empty(len(unique), layer.dim, pin_memory=self._pin)
        self._pull(unique, rows)
        self._waiting[step].append(unique)
        return Lookup(rows, number, (stop - start, slots, layer.dim))

    def _pull(self, unique: Tensor, rows: Tensor) -> None:
        table = self._shared.table
        if isinstance(table, SparseTable):
            table.pull(unique, out=rows, distinct=True)
        else:
            table.pull(unique, out=rows)

    def give(self, step: int, grads: Tensor) -> None:
        """Takes the gradient of the next micro-batch's distinct rows, from the next stage."""
        self._pushes[step].append((self._waiting[step].pop(0), grads.to("cpu", torch.float32)))

    def collect(self, step: int) -> None:
        """The gradients come by `give`."""

    def push(self, step: int) -> None:
        """See `Rows.push`."""
        del self._batches[step], self._waiting[step]
        parts = self._pushes.pop(step)
        if len(parts) == 1:
            ids, grads = parts[0]
        else:
            ids, grads = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
        self._shared.push(step, ids, grads, None)

    def set_lr(self, factor: float) -> None:
        """See `Rows.set_lr`."""
        self._shared.table.set_lr(self._layer.options["lr"] * factor)

    def flush(self) -> None:
        """The table is always up to date."""
