"""A first stage on the cores that has nothing but embeddings, before a GPU.

Its rows are pulled and pushed by threads of the native core (`Errands`). Python only says what to pull, and what to
push once a GPU has written it, so its thread never waits, and can be the GPU's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from heterps._native import Inbox
from heterps.models.batch import Value
from heterps.models.layer import SparseEmbedding
from heterps.runtime.device import calls
from heterps.runtime.rows import Lookup
from heterps.runtime.stage import Stage, Step, Tensors
from heterps.runtime.transit import OnItsWay, arrived
from heterps.store import SparseTable
from heterps.store.arrays import as_ids
from heterps.telemetry import Recorder

Worked = Callable[[str, int, float, float], None]
"""Takes the name of a piece of work, its step, and when it began and ended, in seconds of the steady clock."""


@dataclass(slots=True)
class _Memory:
    """Where the numbers and rows of a batch lie: pinned, if there is a GPU. Gradients come to where their rows are."""

    number: Tensor
    rows: Tensor
    arrays: tuple[NDArray[np.int32], NDArray[np.float32]]
    """The same."""


@dataclass(slots=True)
class _Pull:
    """The rows of a batch for one layer, from the pull to the push."""

    step: int
    ids: NDArray[np.int64]
    shape: tuple[int, ...]
    memory: _Memory
    distinct: int | None = None
    """Rows; None until they are here."""
    grads: Any = None
    """What must live until the push is done."""


class Exchange:
    """The rows of one layer: pulled ahead, pushed when their gradients have arrived."""

    def __init__(self, layer: SparseEmbedding, table: SparseTable, *, staleness: int, pin: bool = True) -> None:
        self.layer = layer
        self._table, self._lag, self._pin = table, staleness + 1, pin
        self._free: deque[_Memory] = deque()
        self._pulling: deque[_Pull] = deque()
        self._pushing: deque[_Pull] = deque()
        self._lr: float | None = None
        self._pushed = -1

    def connect(self, inbox: Inbox, worked: Worked) -> None:
        """Starts its threads, which ring when something is done."""
        self._errands = self._table.errands(inbox, lag=self._lag, await_event=calls.address_of_wait())
        self._worked = worked

    def pull(self, step: int, batch: Mapping[str, Value]) -> _Pull:
        """Asks for the rows of a batch; from any one thread, in the order of steps."""
        ids = as_ids(self.layer.ids_of(batch))
        flat = ids.numpy().reshape(-1)
        own = tuple(ids.shape) if self.layer.keep_shape else (len(ids), flat.size // max(1, len(ids)))
        pull = _Pull(step, flat, (*own, self.layer.dim), self._memory(flat.size))
        self._pulling.append(pull)
        self._errands.pull(flat, *pull.memory.arrays, self._table.seconds)
        return pull

    def _memory(self, ids: int) -> _Memory:
        while self._free:
            memory = self._free.popleft()
            if len(memory.number) == ids:
                return memory
        number = torch.empty(ids, dtype=torch.int32, pin_memory=self._pin)
        rows = torch.empty(ids, self.layer.dim, pin_memory=self._pin)
        return _Memory(number, rows, (number.numpy(), rows.numpy()))

    def look(self) -> None:
        """Takes note of pulls and pushes that are done."""
        while (done := self._errands.pulled()) is not None:
            pull = self._pulling.popleft()
            pull.distinct, began, ended = done
            self._worked("forward", pull.step, began, ended)
        while (done := self._errands.pushed()) is not None:
            pull = self._pushing.popleft()
            self._free.append(pull.memory)
            self._pushed = pull.step
            self._worked("update", pull.step, *done[1:])

    def pushed(self, step: int) -> bool:
        """Whether the gradients of a step are applied."""
        return self._pushed >= step

    def push(self, pull: _Pull, grads: Tensor | OnItsWay | None) -> None:
        """Hands the gradients of a batch's rows over, which may still be on their way; None: there are none."""
        event = 0
        if isinstance(grads, OnItsWay) and grads.tensor.dtype == torch.float32:
            event, pull.grads = grads.event.cuda_event, grads.tensor
        else:
            found = arrived(grads)
            rows = pull.memory.rows[: pull.distinct]
            pull.grads = torch.zeros_like(rows) if found is None else found.to("cpu", torch.float32).contiguous()
        self._pushing.append(pull)
        self._errands.push(pull.grads.data_ptr(), event, self._lr, self._table.seconds)
        self._lr = None

    def set_lr(self, factor: float) -> None:
        """Learning rate of the pushes that follow: the layer's own times `factor`."""
        self._lr = self.layer.options["lr"] * factor

    def close(self) -> None:
        """Stops its threads."""
        if hasattr(self, "_errands"):
            self._errands.close()


class ExchangeStage(Stage):
    """See the module."""

    brief = True
    only_starts = True

    def __init__(self, *args: Any, exchanges: Sequence[Exchange], **options: Any) -> None:
        """Makes a stage; see `Stage` for the other arguments.

        Args:
            *args: of `Stage`; no rows.
            exchanges: of its layers, which are all that it has.
            **options: of `Stage`.
        """
        super().__init__(*args, **options)
        self._exchanges = {exchange.layer.writes[0]: exchange for exchange in exchanges}
        self._held: dict[int, list[_Pull]] = {}
        self._grads: dict[int, Tensors] = {}

    def connect(self, inbox: Inbox, recorder: Recorder) -> None:
        """See `Stage.connect`."""
        for exchange in self._exchanges.values():
            exchange.connect(inbox, partial(recorder.worked, self.spec.number))

    def prepare(self, step: Step) -> list[_Pull]:
        """Starts the pulls of a batch."""
        return [exchange.pull(step.number, step.whole) for exchange in self._exchanges.values()]

    def is_prepared(self, prepared: list[_Pull]) -> bool:
        """Whether the rows are here."""
        for exchange in self._exchanges.values():
            exchange.look()
        return all(pull.distinct is not None for pull in prepared)

    def begin(self, step: Step, prepared: list[_Pull]) -> None:
        """Keeps what was pulled."""
        self._held[step.number] = prepared

    def forward(self, step: Step, micro_batch: int, incoming: Tensors) -> Tensors:
        """What was pulled, for the next stage."""
        return {
            name: Lookup(pull.memory.rows[: pull.distinct], pull.memory.number, pull.shape)
            for name, pull in zip(self._exchanges, self._held[step.number], strict=True)
        }

    def backward(self, step: Step, micro_batch: int, grads: Tensors) -> Tensors:
        """Notes the gradients."""
        self._grads[step.number] = grads
        return {}

    def apply(self, step: Step, *, scale: float = 1.0) -> None:
        """Starts the pushes of a step."""
        grads = self._grads.pop(step.number)
        for (name, exchange), pull in zip(self._exchanges.items(), self._held.pop(step.number), strict=True):
            exchange.push(pull, grads[name])

    def is_applied(self, step: int) -> bool:
        """Whether the pushes of a step are done."""
        for exchange in self._exchanges.values():
            exchange.look()
        return all(exchange.pushed(step) for exchange in self._exchanges.values())

    def set_lr(self, factor: float) -> None:
        """See `Stage.set_lr`."""
        for exchange in self._exchanges.values():
            exchange.set_lr(factor)

    def finish(self) -> None:
        """Stops its threads."""
        for exchange in self._exchanges.values():
            exchange.close()
        super().finish()
