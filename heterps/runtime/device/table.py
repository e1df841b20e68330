"""A table's rows in a device's memory while a run uses them.

The host's table is their home: rows come from it and go back to it with `flush`. A row lies at its id's slot, which the
run gives out from 1 on; slot 0 belongs to nobody.

There are two kinds. `KernelTable` also keeps the index on the GPU, so that only ids cross and a whole step can be one
CUDA graph. `DeviceTable` looks ids up on the host and computes with ordinary tensor operations, on any device: where
kernels cannot be compiled, and as the reference for the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heterps import _native
from heterps.ps.shards import shard_of
from heterps.runtime.device.kernels import Kernels
from heterps.runtime.device.rules import update
from heterps.store import SparseTable

Share = tuple[int, int]
"""Which of how many."""
WHOLE: Share = (0, 1)
FIRST_ROWS = 1 << 16
"""Room for so many rows at first."""
GROWTH = 1.5
"""Factor by which it grows as needed."""
SLACK = 8
"""Steps that may be under way without the host knowing how many of their ids were new: there is room for all."""
FLUSH_ROWS = 1 << 20
"""Rows that are copied back at once."""
FULLEST = 0.7
"""Largest share of an index's places that is in use: beyond it, looking for an empty one takes too long."""


class DeviceTable:
    """Rows and state on a device, by tensor operations; ids are looked up on the host."""

    def __init__(self, home: SparseTable, device: torch.device, *, share: Share = WHOLE) -> None:
        """Makes a place for a table's rows; of a `share` = (n, of), for those of the ids that fall to n."""
        self.home = home
        self.device = device
        self.generation = 0
        """Changes when rows move to other memory."""
        self.lr = torch.full((), home.config.optimizer.lr, device=device)
        self._slots = _native.Slots()
        self._used = 1  # slots before this one have their rows
        self._allocate(FIRST_ROWS)

    def _allocate(self, rows: int) -> None:
        config = self.home.config
        weights = torch.zeros(rows, config.dim, device=self.device)
        state = torch.zeros(rows, config.state_floats, device=self.device)
        dirty = torch.zeros(rows, dtype=torch.bool, device=self.device)
        if self.generation:
            used = self._used
            weights[:used], state[:used], dirty[:used] = self.weights[:used], self.state[:used], self.dirty[:used]
        self.weights: Tensor = weights
        self.state: Tensor = state
        self.dirty: Tensor = dirty
        self.generation += 1

    def prepare(self, ids: Tensor) -> Any:
        """Work on ids [N] that needs no rows, in any thread; what it gives is for `lookup`."""
        slots = torch.empty(len(ids), dtype=torch.int32)
        number = torch.empty(len(ids), dtype=torch.int32)
        return slots[: self._slots.resolve(ids, slots, number)], number

    def lookup(self, prepared: Any) -> tuple[Tensor, Tensor]:
        """Slots of the distinct ids [U], and for each id the number of its own [N]; makes the rows that are missing."""
        self._upload_new()
        slots, number = prepared
        return slots.to(self.device), number.to(self.device)

    def _upload_new(self) -> None:
        """Brings the rows of ids that were seen since the last call."""
        end = len(self._slots)
        if end == self._used:
            return
        if end > len(self.weights):
            self._allocate(max(end, int(GROWTH * len(self.weights))))
        weights, state = self.home.peek(self._slots.ids(self._used, end))
        self.weights[self._used : end] = torch.from_numpy(weights).to(self.device)
        self.state[self._used : end] = torch.from_numpy(state).to(self.device)
        self._used = end

    def rows(self, slots: Tensor) -> Tensor:
        """Rows of slots [U], copied."""
        return self.weights.index_select(0, slots)

    def update(self, slots: Tensor, grads: Tensor) -> None:
        """Updates the rows of distinct slots [U] by their gradients [U, dim]."""
        slots = slots.long()
        rows, state = self.weights.index_select(0, slots), self.state.index_select(0, slots)
        rows, state = update(self.home.config.optimizer, self.lr, rows, state, grads)
        self.weights.index_copy_(0, slots, rows)
        self.state.index_copy_(0, slots, state)
        self.dirty.index_fill_(0, slots, True)

    def set_lr(self, lr: float) -> None:
        """Learning rate of later updates."""
        self.lr.fill_(lr)
        self.home.set_lr(lr)

    def flush(self) -> None:
        """Copies every row that changed since the last flush to the host's table."""
        changed = self.dirty.nonzero().reshape(-1)
        for start in range(0, len(changed), FLUSH_ROWS):
            some = changed[start : start + FLUSH_ROWS]
            self.home.put(self._ids(some), self.weights[some].cpu(), self.state[some].cpu())
        self.dirty.zero_()

    def _ids(self, slots: Tensor) -> Tensor:
        """Ids of ascending slots, on the host."""
        first, last = int(slots[0]), int(slots[-1])
        return torch.from_numpy(self._slots.ids(first, last + 1))[(slots - first).cpu()]


@dataclass(frozen=True, slots=True)
class Call:
    """The memory of one lookup: of `count` ids, up to the update of their rows."""

    count: int
    place: Tensor
    number: Tensor
    slots: Tensor
    sums: Tensor
    """Gradients of the distinct rows; zeros but between `add` and `update`."""


class KernelTable(DeviceTable):
    """Rows, state and index on a GPU. `gather`, `add` and `apply` can be recorded in a graph."""

    def __init__(self, home: SparseTable, device: torch.device, *, share: Share = WHOLE) -> None:
        """See `DeviceTable`; brings all rows that there are."""
        with torch.cuda.device(device):
            self._make(home, device, share)

    def _make(self, home: SparseTable, device: torch.device, share: Share) -> None:
        config = home.config
        self._run = Kernels(config, _native.init_key(config.seed % 2**64, config.name))
        self._tally = torch.tensor([0, 0, 1], dtype=torch.int32, device=device)
        self._places = torch.zeros((), dtype=torch.int64, device=device)
        self._known = 1  # slots that were in use when that was last learnt,
        self._since = 0  # and ids that came since, each of which may be new
        self._offered = 0
        DeviceTable.__init__(self, home, device)
        number, of = share
        for ids, weights, state in home.scan():
            own = slice(None) if of == 1 else shard_of(ids, of) == number
            self._insert(ids[own], weights[own], state[own])

    def _allocate(self, rows: int) -> None:
        super()._allocate(rows)
        places = int(rows / FULLEST)
        ids = torch.zeros(rows, dtype=torch.int64, device=self.device)
        if self.generation > 1:
            ids[: self._used] = self._id_of[: self._used]
        self._id_of: Tensor = ids
        self._keys = torch.full((places + 1,), -(2**63), dtype=torch.int64, device=self.device)
        self._entries = torch.zeros(places + 1, 4, dtype=torch.int32, device=self.device)
        self._places.fill_(places)
        self._run("rehash", self._used, self._id_of, self._used, self._keys, self._places, self._entries)

    def make_room(self, ids: int) -> None:
        """Makes sure that so many new ids fit. Waits for the device only when they might not."""
        if self._known + self._since + ids > len(self.weights):
            self._used = self._known = int(self._tally[2])
            self._since = 0
            if self._used + SLACK * ids > len(self.weights):
                self._allocate(max(self._used + SLACK * ids, int(GROWTH * len(self.weights))))
        self._since += ids
        self._offered += ids

    @property
    def used(self) -> Tensor:
        """Slots in use, on the device: to be read some time later and told to `learn`."""
        return self._tally[2:3]

    @property
    def offered(self) -> int:
        """Ids for which room was made so far."""
        return self._offered

    def learn(self, used: int, offered: int) -> None:
        """Tells how many slots were in use when room had been made for so many ids."""
        self._known, self._since = used, self._offered - offered

    def call(self, count: int) -> Call:
        """Memory for lookups of `count` ids."""

        def ints() -> Tensor:
            return torch.zeros(count, dtype=torch.int32, device=self.device)

        sums = torch.zeros(count, self.home.config.dim, device=self.device)
        return Call(count, ints(), ints(), ints(), sums)

    def gather(self, ids: Tensor, call: Call) -> Tensor:
        """Rows of ids [N] on the device, [N, dim]; rows that are missing are made. There must be room for them."""
        out = torch.empty(call.count, self.home.config.dim, device=self.device)
        self._run("begin", 1, self._tally)
        self._run("find", call.count, ids, call.count, self._keys, self._places, call.place)
        self._run("claim", call.count, ids, call.place, call.count, self._entries, self._tally, self._id_of,
                  self.weights, self.state, call.slots)  # fmt: skip
        self._run("gather", call.count * self._run.parts, call.place, call.count, self._entries, self.weights, out,
                  call.number)  # fmt: skip
        return out

    def add(self, call: Call, grads: Tensor, first: int, count: int) -> None:
        """Adds gradients of the ids first … first + count of a call to the sums of their rows."""
        number = call.number[first : first + count]
        grads = grads.contiguous()
        if grads.data_ptr() % 16:  # four floats are read at once
            grads = grads.clone()
        self._run("scatter", count * self._run.parts, grads, number, count, call.sums)

    def apply(self, call: Call) -> None:
        """Updates the rows of a call by the sums of their gradients."""
        threads = call.count * self._run.lanes
        self._run("update", threads, call.slots, self._tally, self.lr, call.sums, self.weights, self.state, self.dirty)

    def prepare(self, ids: Tensor) -> Any:
        """Nothing can be done ahead."""
        return ids

    def lookup(self, prepared: Any) -> tuple[Tensor, Tensor]:
        """See `DeviceTable.lookup`."""
        self.make_room(len(prepared))
        call = self.call(len(prepared))
        self.gather(prepared.to(self.device), call)
        return call.slots[: int(self._tally[1])], call.number

    def _insert(self, ids: Any, weights: Any, state: Any) -> None:
        """Sets rows of distinct ids."""
        slots, number = self.lookup(torch.from_numpy(np.ascontiguousarray(ids)))
        where = slots[number.long()].long()
        self.weights.index_copy_(0, where, torch.from_numpy(weights).to(self.device))
        self.state.index_copy_(0, where, torch.from_numpy(state).to(self.device))

    def _ids(self, slots: Tensor) -> Tensor:
        return self._id_of[slots].cpu()
