"""The ways of tensors to and from the GPU, beside what it computes: pinned memory, streams of their own."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from heterps.runtime.device import calls
from heterps.runtime.device.streams import streams_of

FETCHED = 64
"""Events of arrivals on the host that are kept apart: more than steps are under way."""
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
    """A set of inputs on the host, and the memory on the device that they are copied to."""

    host: Tensor
    device: Tensor
    fields: dict[str, Tensor]
    arrived: Any
    """Event: the last copy to the device is done."""
    taken: Any
    """Event: the device's memory was read by the last step that needed it."""


class Staging:
    """Buffers of the same fields, filled and sent by many threads, taken by one, and the memory a step computes from.

    There must be more buffers than steps are prepared at once, or the step whose turn it is might wait for a buffer
    that only it would free.
    """

    def __init__(self, fields: Mapping[str, Field], device: torch.device, *, buffers: int) -> None:
        self._fields = dict(fields)
        self._offsets: dict[str, int] = {}
        size = 0
        for name, field in fields.items():
            self._offsets[name] = size
            size += -(-field.bytes // ALIGNMENT) * ALIGNMENT
        self._device = device
        self._stream = streams_of(device).bring
        self._free: deque[Buffer] = deque()
        self._freed = threading.Condition()
        for _ in range(buffers):
            host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
            there = torch.zeros(size, dtype=torch.uint8, device=device)
            events = calls.made_event(self._stream), calls.made_event(self._stream)
            self._free.append(Buffer(host, there, self._views(host), *events))
        self._static = torch.zeros(size, dtype=torch.uint8, device=device)
        self.static = self._views(self._static)
        """What a step computes from."""
        self._stream.wait_stream(torch.cuda.current_stream(device))  # the memory is cleared there

    def _views(self, memory: Tensor) -> dict[str, Tensor]:
        return {
            name: memory[self._offsets[name] : self._offsets[name] + field.bytes].view(field.dtype).view(field.shape)
            for name, field in self._fields.items()
        }

    def acquire(self) -> Buffer:
        """A buffer to fill, as soon as one is free and its last copy is done."""
        with self._freed:
            self._freed.wait_for(lambda: len(self._free) > 0)
            buffer = self._free.popleft()
        if not calls.happened(buffer.arrived):
            buffer.arrived.synchronize()
        return buffer

    def send(self, buffer: Buffer) -> None:
        """Starts the copy of a filled buffer to the device."""
        with torch.cuda.device(self._device):
            calls.wait(self._stream, buffer.taken)
            calls.copy(buffer.device, buffer.host, self._stream)
            calls.record(buffer.arrived, self._stream)

    def take(self, buffer: Buffer, stream: Any) -> None:
        """Puts a buffer where the next step computes from, and gives it back."""
        calls.wait(stream, buffer.arrived)
        calls.copy(self._static, buffer.device, stream)
        calls.record(buffer.taken, stream)
        self.release(buffer)

    def release(self, buffer: Buffer) -> None:
        """Gives a buffer back."""
        with self._freed:
            self._free.append(buffer)
            self._freed.notify()


class Shuttle:
    """Two sets of tensors on the device by which others come or go together, one set while the other is used."""

    def __init__(self, *like: Tensor) -> None:
        self._memory = [[torch.empty_like(one, requires_grad=False) for one in like] for _ in range(2)]
        self._streams = streams_of(like[0].device)
        self._done = [calls.made_event(self._streams.bring) for _ in range(2)]
        self._arrived = [calls.made_event(self._streams.bring) for _ in range(2)]
        self._fetched = [calls.made_event(self._streams.fetch) for _ in range(FETCHED)]
        self._turn = 0

    def bring(self, sources: Sequence[Tensor], targets: Sequence[Tensor], computing: Any) -> None:
        """Copies to the first rows of `targets`, for what the stream `computing` does next, beside what it does now.

        Sources on the host lie in pinned memory and live until they are copied.
        """
        if sources[0].is_cuda:  # another stage's on this GPU: on the same stream, so it is written by then
            for source, target in zip(sources, targets, strict=True):
                target[: len(source)].copy_(source, non_blocking=True)
            return
        turn = self._turn = 1 - self._turn
        memory, arrived, done, stream = self._memory[turn], self._arrived[turn], self._done[turn], self._streams.bring
        calls.wait(stream, done)
        for source, there in zip(sources, memory, strict=True):
            calls.copy(there, source, stream)
        calls.record(arrived, stream)
        calls.wait(computing, arrived)
        for source, there, target in zip(sources, memory, targets, strict=True):
            calls.copy(target, there, computing, size=source.nbytes)
        calls.record(done, computing)

    def fetch(self, source: Tensor, into: Tensor, computing: Any) -> Any:
        """Copies what `computing` has written to pinned memory, as much as that holds; gives the event of its arrival.

        The memory lives until then.
        """
        turn = self._turn = (self._turn + 1) % FETCHED
        there, written, done = self._memory[turn % 2][0], self._arrived[turn % 2], self._done[turn % 2]
        fetched, stream = self._fetched[turn], self._streams.fetch
        calls.wait(computing, done)
        calls.copy(there, source, computing, size=into.nbytes)
        calls.record(written, computing)
        calls.wait(stream, written)
        calls.copy(into, there, stream, size=into.nbytes)
        calls.record(done, stream)
        calls.record(fetched, stream)
        return fetched
