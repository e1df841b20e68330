"""One update of a table's rows for a step, whoever computed their gradients.

Optimizers of rows are not linear: two pushes are not one. A table that several replicas use has a home, the first
replica of the first stage that uses it. The others send their gradients there, summed by id; the home adds them up in
the order of stages, replicas and layers, pushes once, waits until the servers have applied it, and tells the others,
whose next pulls wait for that. A table that one replica uses alone needs none of this: it pushes by itself, and its
later pulls see that.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from heterps.models import Bags, Chain
from heterps.ps.shards import distinct, scatter_add
from heterps.runtime.cluster.layout import Layout, Seat
from heterps.runtime.cluster.mail import Mail
from heterps.runtime.cluster.messages import Message
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


def pushes(chain: Chain, tables: dict[str, Table], layout: Layout, mail: Mail, me: Seat, first_step: int) -> Shared:
    """How each table that this replica uses is pushed to, from `first_step` on."""
    shared: Shared = {}
    for name, table in tables.items():
        users = users_of(chain, layout, name)
        own = [user for user in users if user[0] == me]
        if not own:
            continue
        if len(own) == len(users):
            shared[name] = SharedPush(table, len(own))
            shared[name].start_at(first_step)
        else:
            shared[name] = GatheredPush(name, table, users, mail, me, first_step)
    return shared


class GatheredPush(SharedPush):
    """The gradients of all replicas for a table, pushed as one by its home. For the thread that computes."""

    def __init__(self, name: str, table: Table, users: list[User], mail: Mail, me: Seat, first_step: int) -> None:
        super().__init__(table, len(users))
        self._name, self._all, self._mail, self._me = name, users, mail, me
        self._home = users[0][0]
        self._own: dict[str, tuple[Tensor, Tensor]] = {}
        self.start_at(first_step)

    def wait_for(self, step: int) -> None:
        """Returns when the gradients of `step` are applied."""
        while self._pushed < step:
            self._mail.take("pushed", self._pushed + 1, self._name)
            self._pushed += 1

    def push(self, step: int, layer: str, ids: Tensor | Bags, grads: Tensor, pooling: str | None) -> None:
        """Adds the gradients of one layer of this replica."""
        flat, rows = _flat(ids, grads, pooling)
        unique, inverse = distinct(np.ascontiguousarray(flat.numpy()))
        summed = scatter_add(np.ascontiguousarray(rows.numpy()), inverse, len(unique))
        self.give(step, layer, torch.from_numpy(unique), torch.from_numpy(summed))

    def give(self, step: int, layer: str, ids: Tensor, grads: Tensor) -> None:
        """Adds gradients that are summed by id; there may be none."""
        if self._me == self._home:
            self._own[layer] = ids, grads
        else:
            tensors = {"ids": ids, "grads": grads}
            self._mail.send(self._home, Message("rows", step, self._part(self._me, layer), tensors))

    def settle(self, step: int) -> None:
        """At home: gathers, pushes and tells the others. Elsewhere nothing is to be done."""
        if self._me != self._home:
            return
        ids, grads = [], []
        for seat, layer in self._all:
            if seat == self._me:
                one, two = self._own.pop(layer)
            else:
                sent = self._mail.take("rows", step, self._part(seat, layer)).tensors
                one, two = sent["ids"], sent["grads"]  # type: ignore[assignment]
            ids.append(one)
            grads.append(two)
        self.table.push(torch.cat(ids), torch.cat(grads))
        self.table.wait()  # pulls of other clients may come before it otherwise
        self._pushed = step
        for seat in dict.fromkeys(seat for seat, _ in self._all):
            if seat != self._me:
                self._mail.send(seat, Message("pushed", step, self._name))

    def _part(self, seat: Seat, layer: str) -> str:
        return f"{self._name}/{seat.stage}/{seat.replica}/{layer}"
