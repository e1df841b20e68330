"""The tables behind a chain's embedding layers: made, filled, and kept in step with the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from heterps.errors import InvalidInput
from heterps.models import Bags, Chain
from heterps.models.layer import SparseEmbedding
from heterps.ps import Client
from heterps.store import SparseTable, Table


def bind_tables(
    chain: Chain, *, client: Client | None = None, seed: int = 0, threads: int = 1, fill: bool = True
) -> dict[str, Table]:
    """Gives every embedding layer its table: the one it has, or a new one here or on the client's servers.

    Layers that name the same table share it, and must agree on its options. A table without a `seed` of its own gets
    the run's. New ones get the rows that layers bring, unless others `fill` them.
    """
    options: dict[str, dict[str, Any]] = {}
    for layer in chain.embeddings:
        given = options.setdefault(layer.table_name, layer.options)
        if given != layer.options:
            raise InvalidInput(f"layers that share the table {layer.table_name!r} differ in its options")
    for name, table_options in options.items():
        layers = [layer for layer in chain.embeddings if layer.table_name == name]
        bound = next((layer.table for layer in layers if layer.table is not None), None)
        table: Any = bound if bound is not None else _make(name, {"seed": seed, **table_options}, client, threads)
        if bound is None and fill:
            for layer in layers:
                _fill(table, layer)
        table.set_lr(table.config.optimizer.lr)  # the schedule of an earlier run may have left another
        for layer in layers:
            layer.table = table
    return dict(chain.tables)


def _make(name: str, options: dict[str, Any], client: Client | None, threads: int) -> Table:
    local = SparseTable(name=name, threads=threads, **options)
    return local if client is None else client.table(local.config)


def _fill(table: Table, layer: SparseEmbedding) -> None:
    """Puts the rows of a converted module into a new table."""
    if layer.initial_rows is not None:
        values = layer.initial_rows.detach().to("cpu", torch.float32).contiguous()
        table.put(torch.arange(len(values)), values)


class SharedPush:
    """Collects the gradients of all layers that use a table in a step, and pushes them as one.

    Where one layer uses the table this is a plain push. Where several do, their gradients of equal ids are summed, as
    autograd would; the last one to come pushes, and pulls of the next step wait for it.
    """

    def __init__(self, table: Table, users: int) -> None:
        self.table = table
        self.users = users
        """Layers that read the table."""
        self._condition = threading.Condition()
        self._waiting: dict[int, dict[str, tuple[Any, Tensor, str | None]]] = {}
        self._pushed = -1
        self._failed = False

    def wait_for(self, step: int, *, own: bool = False) -> None:
        """Returns when the gradients of `step` are pushed; those of the only user are, unless it asks for its `own`."""
        if self.users == 1 and not own:
            return
        with self._condition:
            self._condition.wait_for(lambda: self._pushed >= step or self._failed)

    @property
    def asks_early(self) -> bool:
        """Whether `pull_ahead` can ask for the rows of any step."""
        return False

    def pull_ahead(self, step: int, layer: str, ids: Tensor, staleness: int) -> Callable[[], Tensor] | None:
        """Asks for a layer's rows for a step, as they will be when the step `staleness + 1` before it is applied.

        What it gives waits for them; None if that cannot be asked for. The layer then pushes gradients of these ids.
        """
        return None

    def push(self, step: int, layer: str, ids: Tensor | Bags, grads: Tensor, pooling: str | None) -> None:
        """Adds the gradients of one layer, by its name."""
        if self.users == 1:
            _push(self.table, ids, grads, pooling)
            self.pushed(step)
            return
        with self._condition:
            waiting = self._waiting.setdefault(step, {})
            waiting[layer] = ids, grads, pooling
            if len(waiting) < self.users:
                return
            del self._waiting[step]
            flat = [_flat(*waiting[name]) for name in sorted(waiting)]  # whoever comes first, the sums are the same
            self.table.push(torch.cat([ids for ids, _ in flat]), torch.cat([rows for _, rows in flat]))
            self._pushed = step
            self._condition.notify_all()

    def pushed(self, step: int) -> None:
        """The only user has pushed its gradients of the step."""
        with self._condition:
            self._pushed = step
            self._condition.notify_all()

    def set_lr(self, lr: float) -> None:
        """Learning rate of the pushes that follow."""
        self.table.set_lr(lr)

    def fail(self) -> None:
        """Wakes whoever waits: the run is over."""
        with self._condition:
            self._failed = True
            self._condition.notify_all()

    def start_at(self, step: int) -> None:
        """The next step to be pushed."""
        self._pushed = step - 1


def _push(table: Any, ids: Tensor | Bags, grads: Tensor, pooling: str | None) -> None:
    if isinstance(ids, Bags):
        table.push_bag(ids.ids, ids.offsets[:-1], grads, mode=pooling)
    else:
        table.push(ids, grads)


def _flat(ids: Tensor | Bags, grads: Tensor, pooling: str | None) -> tuple[Tensor, Tensor]:
    """Each id with a gradient of its own: what is pooled is spread over its bag."""
    if not isinstance(ids, Bags):
        return ids.reshape(-1), grads.reshape(-1, grads.shape[-1])
    sizes = ids.offsets.diff()
    rows = grads / sizes.clamp(min=1).unsqueeze(1) if pooling == "mean" else grads
    return ids.ids, rows.repeat_interleave(sizes, dim=0)


Shared = dict[str, SharedPush]


def fail_all(shared: Shared) -> None:
    """Wakes whoever waits for a push: the run is over."""
    for push in shared.values():
        push.fail()


def shared_pushes(chain: Chain, tables: dict[str, Table]) -> Shared:
    """One `SharedPush` for each table."""
    users = [layer.table_name for layer in chain.embeddings]
    return {name: SharedPush(table, users.count(name)) for name, table in tables.items()}
