"""The rows of embedding layers during a run: looked up ahead, pulled and pushed for a whole batch at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from heterps import _native
from heterps.models import Bags
from heterps.models.batch import Value
from heterps.models.layer import SparseEmbedding
from heterps.ps.bags import pool
from heterps.runtime.tables import SharedPush
from heterps.runtime.transit import OnItsWay, leaving
from heterps.store import SparseTable
from heterps.store.interface import Pooling


class Rows(Protocol):
    """The rows of one or more embedding layers of a stage.

    `prepare` runs ahead, in another thread; the rest is called by the stage's thread, in order:
    pull, then for each micro-batch part and collect, then push.
    """

    @property
    def layers(self) -> Sequence[SparseEmbedding]:
        """Whose rows these are."""
        ...

    def prepare(self, step: int, batch: Mapping[str, Value]) -> Any:
        """Looks the ids of a batch up; what it gives is handed to `pull`."""
        ...

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Any) -> None:
        """Gets the rows of a whole batch, as the updates of earlier steps left them."""
        ...

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int, device: torch.device) -> Any:
        """What the layer writes for the samples start … stop, on a device, with its gradient to be collected."""
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


def others_use(shared: SharedPush) -> bool:
    """Whether others have to do something before a pull: servers, or further layers that use the table."""
    return shared.users > 1 or not isinstance(shared.table, SparseTable)


@dataclass(slots=True)
class _Step:
    ids: Any
    rows: Tensor
    """[B, slots, dim], as pulled."""
    leaves: list[Tensor] = field(default_factory=list)
    """Of the micro-batches between forward and backward."""
    grads: list[Tensor | OnItsWay] = field(default_factory=list)
    """Of each micro-batch whose backward is done, on the host or on the way there."""


class HostRows:
    """Rows of one layer that are pulled and pushed on the host, as they are; the stage may compute elsewhere."""

    def __init__(
        self,
        layer: SparseEmbedding,
        shared: SharedPush,
        *,
        staleness: int = 0,
        look_ahead: bool = True,
    ) -> None:
        """Makes the rows of a layer.

        Args:
            layer: which one.
            shared: its table.
            staleness: steps whose updates a pull need not wait for.
            look_ahead: whether ids are looked up ahead of the pull. Worth it if a core is free for that.
        """
        self.layers = (layer,)
        self._layer, self._shared, self._staleness = layer, shared, staleness
        self._look_ahead, self.waits = look_ahead, others_use(shared)
        self._steps: dict[int, _Step] = {}

    @property
    def copies(self) -> bool:
        """Whether rows are pulled into memory of their own."""
        return isinstance(self._shared.table, SparseTable)

    @property
    def only_asks(self) -> bool:
        """Whether `prepare` waits for nobody."""
        return not self._staleness or self._shared.asks_early

    def prepare(self, step: int, batch: Mapping[str, Value]) -> Tensor | Callable[[], Tensor] | None:
        """Looks the ids up. Rows of servers are pulled here and now, where staleness leaves the time for it.

        Where it does not, servers may take the question now, and answer when the step before is applied.
        """
        table, ids = self._shared.table, self._layer.ids_of(batch)
        flat = ids.ids if isinstance(ids, Bags) else ids
        coming = self._shared.pull_ahead(step, self._layer.name, flat, self._staleness)
        if coming is not None and isinstance(ids, Bags):
            return lambda: torch.from_numpy(pool(coming().numpy(), ids.offsets[:-1].numpy(), self._pooling))
        if coming is not None:
            return coming
        if self._staleness and not isinstance(table, SparseTable):
            self._shared.wait_for(step - 1 - self._staleness, own=True)
            return self._pulled(ids)
        if self._look_ahead and isinstance(ids, Tensor):
            table.prepare(ids)
        return None

    def wait(self, step: int, batch: Mapping[str, Value], prepared: Any) -> Tensor | None:
        """Waits for the others, and gives what `pull` takes: the rows, if they come from servers."""
        if prepared is not None:
            return prepared if isinstance(prepared, Tensor) else prepared()
        self._shared.wait_for(step - 1 - self._staleness)
        return None if isinstance(self._shared.table, SparseTable) else self._pulled(self._layer.ids_of(batch))

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Any) -> None:
        """See `Rows.pull`."""
        ids = self._layer.ids_of(batch)
        if prepared is None:
            self._shared.wait_for(step - 1 - self._staleness)
            prepared = self._pulled(ids)
        rows = prepared if isinstance(prepared, Tensor) else prepared()
        self._steps[step] = _Step(ids, self._layer.shaped(rows, ids))

    def _pulled(self, ids: Value) -> Tensor:
        table = self._shared.table
        if not isinstance(ids, Bags):
            return torch.as_tensor(table.pull(ids))
        return torch.as_tensor(table.bag(ids.ids, ids.offsets[:-1], mode=self._pooling))

    @property
    def _pooling(self) -> Pooling:
        return "mean" if self._layer.pooling == "mean" else "sum"

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int, device: torch.device) -> Tensor:
        """See `Rows.part`."""
        held = self._steps[step]
        rows = held.rows if stop - start == len(held.rows) else held.rows[start:stop]
        leaf = rows.to(device).detach().requires_grad_()
        held.leaves.append(leaf)
        return leaf

    def collect(self, step: int) -> None:
        """See `Rows.collect`."""
        held = self._steps[step]
        leaf = held.leaves.pop(0)
        grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        held.grads.append(leaving(grad))

    def push(self, step: int) -> None:
        """See `Rows.push`."""
        done = self._steps.pop(step)
        grads = [grad.wait() if isinstance(grad, OnItsWay) else grad for grad in done.grads]
        grads = grads or [torch.zeros_like(done.rows)]  # a share without samples has none
        whole = grads[0] if len(grads) == 1 else torch.cat(grads)
        shape = (-1, self._layer.dim) if isinstance(done.ids, Bags) else (*done.ids.shape, self._layer.dim)
        self._shared.push(step, self._layer.name, done.ids, whole.reshape(shape), self._layer.pooling)

    def set_lr(self, factor: float) -> None:
        """See `Rows.set_lr`."""
        self._shared.set_lr(self._layer.options["lr"] * factor)

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
    """Of the tensor they stand for: [samples, slots, dim], or as the ids."""


class DistinctRows:
    """Rows of one layer that the next stage reads on a GPU: only distinct ones cross, and their summed gradients.

    `part` gives a `Lookup`; the next stage sends back the gradient of its rows, for `give`.
    """

    def __init__(
        self, layer: SparseEmbedding, shared: SharedPush, *, staleness: int = 0, whole: bool = True, pin: bool = True
    ) -> None:
        """Makes the rows of a layer.

        Args:
            layer: which one.
            shared: its table.
            staleness: steps whose updates a pull need not wait for.
            whole: whether batches are computed as they are, not in micro-batches.
            pin: whether rows lie in pinned memory.
        """
        self.layers = (layer,)
        self._layer, self._shared, self._staleness, self._pin = layer, shared, staleness, pin
        self._whole, self.waits = whole, others_use(shared)
        self._prepared: _Pulled | None = None
        self._pulled: dict[int, list[_Pulled]] = {}
        self._free: list[tuple[Tensor, Tensor]] = []

    def prepare(self, step: int, batch: Mapping[str, Value]) -> _Pulled | None:
        """Pulls the rows, where staleness leaves the time: the updates of another step go on beside it."""
        if not self._whole or not self._staleness:
            return None
        self._shared.wait_for(step - 1 - self._staleness, own=True)
        return self._pull(self._ids_of(batch))

    def wait(self, step: int, batch: Mapping[str, Value], prepared: Any) -> _Pulled | None:
        """Waits for the others; of whole batches, rows of servers are pulled here, else by micro-batch in `part`."""
        if isinstance(prepared, _Pulled):
            return prepared
        self._shared.wait_for(step - 1 - self._staleness)
        here = isinstance(self._shared.table, SparseTable)
        return None if here or not self._whole else self._pull(self._ids_of(batch))

    def pull(self, step: int, batch: Mapping[str, Value], prepared: Any) -> None:
        """Notes the ids; rows that are not here yet are pulled by micro-batch."""
        self._prepared = prepared
        if prepared is None:
            self._shared.wait_for(step - 1 - self._staleness)
        self._ids = self._ids_of(batch)
        self._pulled[step] = []

    def part(self, step: int, layer: SparseEmbedding, start: int, stop: int, device: torch.device) -> Lookup:
        """The rows of a micro-batch, on the host: the next stage brings them to its device."""
        ids, pulled, self._prepared = self._ids[start:stop], self._prepared, None
        if pulled is None or len(pulled.ids) != ids.numel():
            pulled = self._pull(ids)
        self._pulled[step].append(pulled)
        own = ids.shape[1:] if layer.keep_shape else (ids.shape[1:].numel(),)
        return Lookup(pulled.rows[: pulled.distinct], pulled.number, (stop - start, *own, layer.dim))

    def _ids_of(self, batch: Mapping[str, Value]) -> Tensor:
        ids = self._layer.ids_of(batch)
        assert isinstance(ids, Tensor)
        return ids.contiguous()

    def _pull(self, some: Tensor) -> _Pulled:
        ids, table = some.reshape(-1), self._shared.table
        number, rows = self._memory(len(ids))
        if isinstance(table, SparseTable):
            distinct, ticket = table.pull_distinct(ids, number=number, rows=rows)
        else:
            ticket, unique = 0, torch.empty(len(ids), dtype=torch.int64)
            distinct = _native.distinct_into(ids, unique, number)
            table.pull(unique[:distinct], out=rows[:distinct])
        return _Pulled(ids, number, rows, distinct, ticket)

    def _memory(self, ids: int) -> tuple[Tensor, Tensor]:
        """Room for the numbers and rows of so many ids, used again when their gradients are back."""
        for place, (number, _) in enumerate(self._free):
            if len(number) == ids:
                return self._free.pop(place)
        self._free.clear()
        number = torch.empty(ids, dtype=torch.int32, pin_memory=self._pin)
        return number, torch.empty(ids, self._layer.dim, pin_memory=self._pin)

    def give(self, step: int, grads: Tensor) -> None:
        """Takes the gradient of the next micro-batch's distinct rows, from the next stage."""
        waiting = next(pulled for pulled in self._pulled[step] if pulled.grads is None)
        waiting.grads = grads.to("cpu", torch.float32)

    def collect(self, step: int) -> None:
        """The gradients come by `give`."""

    def push(self, step: int) -> None:
        """See `Rows.push`."""
        parts = self._pulled.pop(step)
        if len(parts) == 1 and isinstance(self._shared.table, SparseTable) and self._shared.users == 1:
            self._shared.table.push_distinct(parts[0].ids, parts[0].grads, ticket=parts[0].ticket)
            self._shared.pushed(step)
        else:
            nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, self._layer.dim)
            pieces = [(part.ids, part.spread()) for part in parts] or [nothing]  # a share without samples has none
            ids, grads = (torch.cat(column) for column in zip(*pieces, strict=True))
            self._shared.push(step, self._layer.name, ids, grads, None)
        self._free += [(part.number, part.rows) for part in parts]

    def set_lr(self, factor: float) -> None:
        """See `Rows.set_lr`."""
        self._shared.set_lr(self._layer.options["lr"] * factor)

    def flush(self) -> None:
        """The table is always up to date."""


@dataclass(slots=True)
class _Pulled:
    """A micro-batch whose rows are on their way."""

    ids: Tensor
    number: Tensor
    rows: Tensor
    distinct: int
    ticket: int
    grads: Tensor | None = None

    def spread(self) -> Tensor:
        """A gradient for each id: that of its row for one of those that share it, zeros for the rest."""
        assert self.grads is not None
        whole = torch.zeros(len(self.ids), self.grads.shape[1])
        first = torch.full((len(self.grads),), len(self.ids), dtype=torch.int64)
        first.scatter_reduce_(0, self.number.long(), torch.arange(len(self.ids)), "amin")
        return whole.index_copy_(0, first, self.grads)
