"""What the previous stage sends to a stage whose steps are CUDA graphs: it has to lie where the graph reads it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from heterps.runtime.device.staging import Shuttle
from heterps.runtime.rows import Lookup
from heterps.runtime.transit import OnItsWay


class Arrival:
    """Where a graph reads a tensor of the previous stage from, and leaves its gradient."""

    def __init__(self, value: Any, device: torch.device) -> None:
        self._shape = value.shape
        self._number: Tensor | None = None
        if isinstance(value, Lookup):
            ids = value.number.numel()
            self._leaf = torch.zeros(ids, value.rows.shape[1], device=device, requires_grad=True)
            self._number = torch.zeros(ids, dtype=torch.int32, device=device)
        else:
            self._leaf = torch.zeros_like(value, device=device, requires_grad=value.is_floating_point())
        self._targets = [self._leaf.detach(), *([self._number] if self._number is not None else [])]
        self._in, self._out = Shuttle(*self._targets), Shuttle(self._leaf)

    def value(self) -> Tensor:
        """The tensor, in the graph."""
        if self._number is None:
            return self._leaf
        return self._leaf.index_select(0, self._number).view(self._shape)

    def bring(self, value: Any, stream: Any) -> Any:
        """Copies the next step's values to where the graph reads them, for what the stream does next.

        Gives what must live until then.
        """
        sources = (value.rows, value.number) if isinstance(value, Lookup) else (_pinned(value),)
        self._in.bring(sources, self._targets, stream)
        return sources

    def grad(self, value: Any, stream: Any) -> OnItsWay | None:
        """The gradient of what was sent, on its way to the host: of a lookup, that of its rows, in their memory."""
        grad = self._leaf.grad
        if grad is None:
            return None
        own = isinstance(value, Lookup)
        into = value.rows if own else torch.empty(value.shape, dtype=grad.dtype, pin_memory=True)
        return OnItsWay(into, self._out.fetch(grad, into, stream))


def _pinned(value: Tensor) -> Tensor:
    """The tensor where the device can fetch it while others compute."""
    return value if value.is_cuda else value.contiguous().pin_memory()
