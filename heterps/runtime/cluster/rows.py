"""One update of a table's rows for a step, whoever computed their gradients.

Optimizers of rows are not linear: two pushes are not one. Where several replicas or layers use a table, each
pushes its part of the step, and the servers apply them as one when all are there, in the order of stages, replicas and
layers. A table that one layer of one replica uses alone has steps of one part: it, too, asks for rows ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from heterps.models import Bags, Chain
from heterps.ps.coming import Coming
from heterps.ps.remote import RemoteTable
from heterps.runtime.cluster.layout import Layout, Seat
from heterps.runtime.tables import Shared, SharedPush, _flat
from heterps.store import Table

User = tuple[Seat, str]
"""A replica and the layer of it that uses a table."""


def users_of(chain: Chain, layout: Layout, table: str) -> list[User]:
    """Who has gradients for a table in every step, in the order in which they are added up."""
    found = []
    for stage in layout.stages:
        names = [
            layer.name
            for layer in chain.embeddings
            if layer.table_name == table and layer in chain.layers[stage.first : stage.last + 1]
        ]
        found += [(seat, name) for seat in stage.seats() for name in sorted(names)]
    return found


def pushes(
    chain: Chain, tables: dict[str, Table], layout: Layout, me: Seat, first_step: int, *, timeout_s: float
) -> Shared:
    """How each table that this replica uses is pushed to, from `first_step` on; waits end after `timeout_s`."""
    shared: Shared = {}
    for name, table in tables.items():
        users = users_of(chain, layout, name)
        if not any(seat == me for seat, _ in users):
            continue
        assert isinstance(table, RemoteTable), "tables of engine ray are on servers"
        shared[name] = GatheredPush(table, users, me, timeout_s)
        shared[name].start_at(first_step)
    return shared


class GatheredPush(SharedPush):
    """Parts of a table's gradients, from this replica."""

    def __init__(self, table: RemoteTable, users: Sequence[User], me: Seat, timeout_s: float) -> None:
        super().__init__(table, len(users))
        self._remote, self._parts, self._timeout_s = table, list(users), timeout_s
        self._me, self._own = me, sum(seat == me for seat, _ in users)
        self._sent: dict[int, int] = {}
        self._lr: float | None = None
        self._first = 0
        self._coming: dict[tuple[int, str], Coming] = {}
        """Of steps and layers that have no gradients yet."""

    def wait_for(self, step: int, *, own: bool = False) -> None:
        """Returns when the gradients of `step` are applied, those of the others too."""
        if own:
            with self._condition:
                self._condition.wait_for(lambda: self._pushed >= step or self._failed)
        self._remote.wait_for(step, timeout_s=self._timeout_s)

    @property
    def asks_early(self) -> bool:
        """See `SharedPush.asks_early`."""
        return self._remote.asks_early

    def pull_ahead(self, step: int, layer: str, ids: Tensor, staleness: int) -> Callable[[], Tensor] | None:
        """See `SharedPush.pull_ahead`.

        By messages: only what must wait anyway, and not for steps before the first one, of which servers know nothing.
        """
        after = step - 1 - staleness
        if not self.asks_early and (staleness or after < self._first):
            return None
        coming = self._remote.pull_after(ids, after)
        self._coming[step, layer] = coming

        def rows() -> Tensor:
            found = torch.from_numpy(coming.rows(self._timeout_s))
            self.wait_for(after)  # it is applied: this raises what went wrong with it
            return found

        return rows

    def start_at(self, step: int) -> None:
        """The next step to be pushed; meets the others that push to the table."""
        super().start_at(step)
        self._first = step
        own = [part for part, (seat, _) in enumerate(self._parts) if seat == self._me]
        self._remote.meet(step=step, own=own, parts=len(self._parts))

    def push(self, step: int, layer: str, ids: Tensor | Bags, grads: Tensor, pooling: str | None) -> None:
        """Sends the gradients of one layer of this replica; there may be none."""
        flat, rows = _flat(ids, grads, pooling)
        part = self._parts.index((self._me, layer))
        coming = self._coming.pop((step, layer), None)
        self._remote.push_part(
            flat, rows, step=step, part=part, parts=len(self._parts), lr=self._lr, coming=coming
        )  # fmt: skip
        with self._condition:
            self._sent[step] = self._sent.get(step, 0) + 1
            if self._sent[step] == self._own:
                del self._sent[step]
                self._pushed = step
                self._condition.notify_all()

    def set_lr(self, lr: float) -> None:
        """Of the next step; the servers get it with its parts."""
        self._lr = lr
