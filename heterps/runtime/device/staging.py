"""The way of a step's inputs to the GPU: packed into pinned memory, copied while the step before computes."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 256
"""Bytes: of every field in a buffer."""


@dataclass(frozen=True, slots=True)
class Field:
    """One tensor of a buffer."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Of the tensor."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(slots=True)
class Buffer:
    """A set of inputs on the host; `sent` tells when its last copy was done."""

    memory: Tensor
    fields: dict[str, Tensor]
    sent: Any = None


class Staging:
    """Buffers of the same fields: some on the host to be filled, two on the device to arrive in, one to compute from.

    `acquire` may be called by many threads, `send` by one. Buffers must be at least as many as steps are prepared at
    once, or the one whose turn it is might wait for a buffer that only its own step would free.
    """

    def __init__(self, fields: Mapping[str, Field], device: torch.device, *, buffers: int) -> None:
        self._fields = dict(fields)
        self._offsets: dict[str, int] = {}
        size = 0
        for name, field in fields.items():
            self._offsets[name] = size
            size += -(-field.bytes // ALIGNMENT) * ALIGNMENT
        pin = device.type == "cuda"
        self._free: deque[Buffer] = deque()
        self._freed = threading.Condition()
        for _ in range(buffers):
            memory = torch.zeros(size, dtype=torch.uint8, pin_memory=pin)
            self._free.append(Buffer(memory, self._views(memory)))
        self._static = torch.zeros(size, dtype=torch.uint8, device=device)
        self.static = self._views(self._static)
        """What a step computes from."""
        self._arriving = [torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2)]
        self._taken: list[Any] = [None, None]
        self._turn = 0
        self._stream = torch.cuda.Stream(device) if pin else None  # type: ignore[no-untyped-call]

    def _views(self, memory: Tensor) -> dict[str, Tensor]:
        return {
            name: memory[self._offsets[name] : self._offsets[name] + field.bytes].view(field.dtype).view(field.shape)
            for name, field in self._fields.items()
        }

    def acquire(self) -> Buffer:
        """A buffer to fill, as soon as one is free and sent."""
        with self._freed:
            self._freed.wait_for(lambda: len(self._free) > 0)
            buffer = self._free.popleft()
        if buffer.sent is not None:
            buffer.sent.synchronize()
        return buffer

    def release(self, buffer: Buffer) -> None:
        """Gives a buffer back."""
        with self._freed:
            self._free.append(buffer)
            self._freed.notify()

    def send(self, buffer: Buffer) -> None:
        """Copies a filled buffer to where the next step computes from, and gives it back."""
        if self._stream is None:
            self._static.copy_(buffer.memory)
            self.release(buffer)
            return
        turn = self._turn
        self._turn = 1 - turn
        with torch.cuda.stream(self._stream):
            if self._taken[turn] is not None:
                self._stream.wait_event(self._taken[turn])
            self._arriving[turn].copy_(buffer.memory, non_blocking=True)
            buffer.sent = self._stream.record_event()
        self.release(buffer)
        computing = torch.cuda.current_stream()
        computing.wait_event(buffer.sent)
        self._static.copy_(self._arriving[turn], non_blocking=True)
        self._taken[turn] = computing.record_event()
