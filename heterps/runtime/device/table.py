"""A table's rows in a GPU's memory while a run uses them; ids are looked up on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from heterps import _native
from heterps.runtime.device.rules import update
from heterps.store import SparseTable

FIRST_ROWS = 1 << 16
"""Room for so many rows at first; it doubles as needed."""
FLUSH_ROWS = 1 << 20
"""Rows that are copied back at once."""


class DeviceTable:
    """The rows and state that a run has touched, on a device.

    The host's table is their home: rows come from it when an id is first seen, and go back to it with `flush`. A row
    lies at its id's slot. Slot 0 belongs to nobody: padding points there.
    """

    def __init__(self, home: SparseTable, device: torch.device) -> None:
        self.home = home
        self.device = device
        self.generation = 0
        """Changes when the rows move to other memory."""
        self.slots = _native.Slots()
        self.lr = torch.full((), home.config.optimizer.lr, device=device)
        self._uploaded = 1  # slots before this one have their rows
        self._allocate(FIRST_ROWS)

    def _allocate(self, rows: int) -> None:
        config = self.home.config
        weights = torch.zeros(rows, config.dim, device=self.device)
        state = torch.zeros(rows, config.state_floats, device=self.device)
        dirty = torch.zeros(rows, dtype=torch.bool, device=self.device)
        if self.generation:
            used = self._uploaded
            weights[:used], state[:used], dirty[:used] = self.weights[:used], self.state[:used], self.dirty[:used]
        self.weights: Tensor = weights
        self.state: Tensor = state
        self.dirty: Tensor = dirty
        self.generation += 1

    def upload_new(self) -> None:
        """Brings the rows of ids that were seen since the last call. After this, every slot handed out has its row."""
        end = len(self.slots)
        if end == self._uploaded:
            return
        if end > len(self.weights):
            rows = len(self.weights)
            while rows < end:
                rows *= 2
            self._allocate(rows)
        weights, state = self.home.peek(self.slots.ids(self._uploaded, end))
        self.weights[self._uploaded : end] = torch.from_numpy(weights).to(self.device)
        self.state[self._uploaded : end] = torch.from_numpy(state).to(self.device)
        self._uploaded = end

    def rows(self, slots: Tensor) -> Tensor:
        """Rows of slots [U], copied."""
        return self.weights.index_select(0, slots)

    def update(self, slots: Tensor, rows: Tensor, grads: Tensor) -> None:
        """Updates rows of distinct slots (slot 0 may repeat) by their gradients; `rows` are as they were gathered."""
        slots = slots.long()
        state = self.state.index_select(0, slots)
        new_rows, new_state = update(self.home.config.optimizer, self.lr, rows, state, grads)
        self.weights.index_copy_(0, slots, new_rows)
        if state.shape[1]:
            self.state.index_copy_(0, slots, new_state)
        self.dirty.index_fill_(0, slots, True)

    def set_lr(self, lr: float) -> None:
        """Learning rate of later updates."""
        self.lr.fill_(lr)
        self.home.set_lr(lr)

    def flush(self) -> None:
        """Copies every row that changed since the last flush to the host's table."""
        self.dirty[0] = False
        changed = self.dirty.nonzero().reshape(-1)
        for start in range(0, len(changed), FLUSH_ROWS):
            some = changed[start : start + FLUSH_ROWS]
            first, last = int(some[0]), int(some[-1])
            ids = torch.from_numpy(self.slots.ids(first, last + 1))[(some - first).cpu()]
            self.home.put(ids, self.weights[some].cpu(), self.state[some].cpu())
        self.dirty.zero_()
