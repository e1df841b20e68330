"""The last stage of a pipeline on a GPU: a whole step as one CUDA graph, from its inputs to its updates.

The first step runs as any other stage's, which makes the optimizer's state and warms the libraries up. From the second
on, batches of the same size are computed by replaying a graph: the host only fills a buffer and starts it. Batches of
another size, bags and several micro-batches take the ordinary way.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from heterps.models import Bags
from heterps.models.batch import Batch, Value, batch_size
from heterps.runtime.device import calls
from heterps.runtime.device.adam import FastAdam
from heterps.runtime.device.arrivals import Arrival
from heterps.runtime.device.products import exact_products
from heterps.runtime.device.rows import DeviceRows, ids_of
from heterps.runtime.device.staging import Buffer, Field, Staging
from heterps.runtime.device.streams import streams_of
from heterps.runtime.device.table import Call, KernelTable
from heterps.runtime.rows import Lookup
from heterps.runtime.stage import Stage, Step, Tensors

REPORTS = 4096
"""Reports that are kept on the host until they are read; far more than steps are in flight."""
TIMED_EVERY = 8
"""Steps between two whose time on the device is taken: it costs the host more than it is worth for each."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a step tells the host, on its way there: its loss, and how many slots each table has in use."""

    words: np.ndarray[Any, np.dtype[np.int32]]
    """The bits of the loss, then the counts, in pinned memory."""
    event: Any
    offered: tuple[int, ...]
    """Ids that each table had been offered."""
    began: Any
    """Event of the step's start, with a time, as `event` has; None if nobody asks."""

    def ready(self) -> bool:
        """True when it can be read without waiting."""
        return calls.happened(self.event)

    def __float__(self) -> float:
        self.event.synchronize()
        return float(self.words[:1].view(np.float32)[0])


class GraphStage(Stage):
    """The last stage on a GPU. Its rows, if any, are `DeviceRows` of kernel tables."""

    applies_at_once = True
    brief = True

    def __init__(
        self, *args: Any, buffers: int, clip_norm: float | None = None, scheduled: bool = False, **options: Any
    ):
        """Makes a stage; see `Stage` for the arguments.

        Args:
            *args: of `Stage`.
            buffers: for inputs on the host; more than steps that are prepared at once.
            clip_norm: of the gradients of this stage, if it is the only one with dense weights.
            scheduled: whether learning rates change.
            **options: of `Stage`.
        """
        super().__init__(*args, **options)
        self._device_rows = [rows for rows in self.rows if isinstance(rows, DeviceRows)]
        self._kernel_tables = [rows.table for rows in self._device_rows if isinstance(rows.table, KernelTable)]
        assert len(self._kernel_tables) == len(self.rows)
        self._buffers, self._clip_norm = buffers, clip_norm
        self._making = threading.Lock()
        self._staging: Staging | None = None
        self._graph: Any = None
        self._made_for: tuple[Any, ...] | None = None
        self._warm = False
        self._replayed: set[int] = set()
        self._losses: dict[int, Report] = {}
        words = torch.zeros(REPORTS, 1 + len(self._kernel_tables), dtype=torch.int32, pin_memory=True)
        self._ring, self._ring_words = words.unbind(), words.numpy()
        now = torch.cuda.current_stream(self.spec.device)
        self._ring_events = [calls.made_event(now, timed=True) for _ in range(REPORTS)]
        self._starts = [calls.made_event(now, timed=True) for _ in range(REPORTS)]
        self._unread: deque[Report] = deque()
        self._sent: deque[tuple[Any, Any]] = deque()
        self._captures_optimizer = _make_capturable(self.optimizer, self.spec.device, scheduled=scheduled)
        self._recordable = True
        self._fast_adam: FastAdam | None = None
        self._arrivals: dict[str, Arrival] = {}
        self._calls: list[Call] = []
        self._graph_grads: list[tuple[nn.Parameter, Tensor | None]] = []

    # Ahead, in other threads.

    def prepare(self, step: Step) -> Any:
        """Fills a buffer; batches that do not fit the graph are looked up the ordinary way."""
        batch = step.whole
        with self._making:
            if self._staging is None:
                self._make_staging(batch)
        if self._staging is None or not self._fits(batch):
            return super().prepare(step)
        buffer = self._staging.acquire()
        for name in self._tensors:
            _copy(batch[name], buffer.fields[name])
        for number, rows in enumerate(self._device_rows):
            _flatten(ids_of(rows.layers, batch), out=buffer.fields[f"{number}:ids"])
        self._staging.send(buffer)
        return buffer

    def _make_staging(self, batch: Batch) -> None:
        self._size = batch_size(batch) if batch else 0
        self._counts: list[list[int]] = []
        """Ids of each layer, for each of the stage's tables."""
        self._id_shapes: list[list[torch.Size]] = []
        fields: dict[str, Field] = {}
        for name in self._tensors:
            value = batch[name]
            if isinstance(value, Bags):
                return
            fields[name] = Field(value.dtype, tuple(value.shape))
        for number, rows in enumerate(self._device_rows):
            ids = ids_of(rows.layers, batch)
            if any(isinstance(value, Bags) for value in ids):
                return
            shapes = [value.shape for value in ids if isinstance(value, Tensor)]
            self._id_shapes.append(shapes)
            self._counts.append([shape.numel() for shape in shapes])
            fields[f"{number}:ids"] = Field(torch.int64, (sum(self._counts[-1]),))
        self._kinds = {name: (value.dtype, value.shape) for name, value in batch.items() if isinstance(value, Tensor)}
        self._staging = Staging(fields, self.spec.device, buffers=self._buffers)

    def _fits(self, batch: Batch) -> bool:
        """True for the shapes and types that the buffers were made for."""
        return all(isinstance(v, Tensor) and (v.dtype, v.shape) == self._kinds[name] for name, v in batch.items())

    # In the stage's thread.

    def begin(self, step: Step, prepared: Any) -> None:
        """Starts a step: the ordinary way, or by handing its buffer over."""
        self._packed: Buffer | None = None
        if isinstance(prepared, Buffer) and self._warm and self._recordable and step.micro_batches == 1:
            self._packed = prepared
        else:
            self._begin_as_usual(step, prepared)

    def _begin_as_usual(self, step: Step, prepared: Any) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)  # a graph leaves its gradients behind
        if isinstance(prepared, Buffer):
            assert self._staging is not None
            self._staging.release(prepared)
            prepared = super().prepare(step)
        super().begin(step, prepared)

    def forward(self, step: Step, micro_batch: int, incoming: Tensors) -> Tensors:
        """Forward and backward, and with a graph the update too."""
        if self._packed is None:
            with nullcontext() if self._warm else exact_products(self.spec.device):  # compiles what a graph will need
                return super().forward(step, micro_batch, incoming)
        assert self._staging is not None
        self._make_room()
        key = self._key(incoming)
        if key != self._made_for and not self._captured(incoming):
            self._begin_as_usual(step, self._packed)
            self._packed = None
            return super().forward(step, micro_batch, incoming)
        self._made_for = key
        stream = torch.cuda.current_stream()
        self._staging.take(self._packed, stream)
        sent = [self._arrivals[name].bring(value, stream) for name, value in incoming.items()]
        turn = step.number % REPORTS
        began = self._starts[turn] if turn % TIMED_EVERY == 0 else None
        if began is not None:
            calls.record(began, stream)
        self._graph.replay()
        if not self._captures_optimizer and self.optimizer is not None:
            for parameter, grad in self._graph_grads:
                parameter.grad = grad
            self.optimizer.step()
        self._replayed.add(step.number)
        calls.copy(self._ring[turn], self._words, stream)
        event = self._ring_events[turn]
        calls.record(event, stream)
        report = Report(self._ring_words[turn], event, tuple(table.offered for table in self._kernel_tables), began)
        self._losses[step.number] = report
        self._unread.append(report)
        grads = {name: self._arrivals[name].grad(value, stream) for name, value in incoming.items()}
        self._hold([(event, sent), *((grad.event, grad.tensor) for grad in grads.values() if grad is not None)])
        return grads

    def apply(self, step: Step, *, scale: float = 1.0) -> Any:
        """Updates, unless the graph did."""
        if step.number in self._replayed:
            self._replayed.remove(step.number)
            return self._losses.pop(step.number)
        self._clip()
        loss = super().apply(step, scale=scale)
        self._warm = True
        return loss

    def finish(self) -> None:
        """Brings everything back to the host, and gives the GPU's memory up."""
        torch.cuda.synchronize(self.spec.device)  # the memory of copies that are under way must not be used again
        super().finish()
        self._graph, self._staging, self._fast_adam, self._graph_grads, self._calls = None, None, None, [], []
        self._arrivals, self._device_rows, self._kernel_tables, self.rows = {}, [], [], []
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)

    def set_lr(self, factor: float) -> None:
        """See `Stage.set_lr`; a graph reads learning rates from tensors."""
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                if "initial_lr" not in group:
                    group["initial_lr"] = float(group["lr"])  # waits for the device: once
                initial = group["initial_lr"]
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(initial * factor)
                else:
                    group["lr"] = initial * factor
        for rows in self.rows:
            rows.set_lr(factor)

    def _make_room(self) -> None:
        """Room for the step's ids in every table, by what the reports of earlier steps told."""
        while self._unread and self._unread[0].ready():
            report = self._unread.popleft()
            if report.began is not None:
                self.device_s += report.began.elapsed_time(report.event) / 1e3
                self.device_steps += 1
            for table, used, offered in zip(
                self._kernel_tables, report.words[1:].tolist(), report.offered, strict=True
            ):
                table.learn(used, offered)
        for table, sizes in zip(self._kernel_tables, self._counts, strict=True):
            table.make_room(sum(sizes))

    def _key(self, incoming: Tensors) -> tuple[Any, ...]:
        """What a graph was made for: it must be made again when this changes."""
        shapes = [value.shape if isinstance(value, Lookup) else tuple(value.shape) for value in incoming.values()]
        return (*shapes, *(table.generation for table in self._kernel_tables))

    def _captured(self, incoming: Tensors) -> bool:
        """Records a step; False if the model does something that cannot be recorded. Then no step is, from now on."""
        try:
            self._capture(incoming)
        except RuntimeError as error:
            self._recordable = False
            why = str(error.__context__ or error).splitlines()[0]
            warnings.warn(f"{self.spec}: steps are not recorded as a CUDA graph, and run slower: {why}", stacklevel=2)
            torch.cuda.synchronize(self.spec.device)
        return self._recordable

    def _capture(self, incoming: Tensors) -> None:
        """Records a step. Nothing is computed here."""
        torch.cuda.synchronize(self.spec.device)  # what an earlier graph read and wrote is free from here on
        self._graph = None
        self._fast_adam = FastAdam(self.optimizer) if self.optimizer and FastAdam.fits(self.optimizer) else None
        self._arrivals = {name: Arrival(value, self.spec.device) for name, value in incoming.items()}
        self._calls = [table.call(sum(n)) for table, n in zip(self._kernel_tables, self._counts, strict=True)]
        graph = torch.cuda.CUDAGraph()
        if self.optimizer is not None:
            self.optimizer.zero_grad(set_to_none=True)
        stream = streams_of(self.spec.device).record
        with (
            exact_products(self.spec.device),
            torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"),
        ):
            self._record()
        if self._fast_adam is not None:
            self._fast_adam.connect()
        self._graph_grads = [(parameter, parameter.grad) for parameter in self.parameters.values()]
        self._graph = graph

    def _record(self) -> None:
        assert self._staging is not None
        static = self._staging.static
        values: Tensors = {name: static[name] for name in self._tensors}
        for name, arrival in self._arrivals.items():
            values[name] = arrival.value()
        leaves: list[list[Tensor]] = []
        written: dict[str, Tensor] = {}
        for number, rows in enumerate(self._device_rows):
            gathered = self._kernel_tables[number].gather(static[f"{number}:ids"], self._calls[number])
            own = [part.detach().requires_grad_() for part in torch.split(gathered, self._counts[number])]
            for layer, leaf, shape in zip(rows.layers, own, self._id_shapes[number], strict=True):
                written[layer.name] = layer.shaped(leaf, torch.empty(shape, device="meta"))
            leaves.append(own)
        self.compute(values, lambda layer: written[layer.name])
        if self._on_score is not None:
            self._on_score(values[str(self._score)].detach(), values[str(self._label)])
        loss = values[self.loss]
        if loss.requires_grad:
            loss.backward()
        words = [loss.detach().float().reshape(1).view(torch.int32), *(table.used for table in self._kernel_tables)]
        self._clip()
        if self._fast_adam is not None:
            self._fast_adam.record()
        elif self._captures_optimizer and self.optimizer is not None:
            self.optimizer.step()
        with torch.no_grad():
            for table, call, own in zip(self._kernel_tables, self._calls, leaves, strict=True):
                first = 0
                for leaf in own:
                    if leaf.grad is not None:
                        table.add(call, leaf.grad, first, len(leaf))
                    first += len(leaf)
                table.apply(call)
        self._words = torch.cat(words)

    def _clip(self) -> None:
        grads = self.grads()
        if self._clip_norm is not None and grads:
            norm = torch.stack(torch._foreach_norm(grads)).norm()
            torch._foreach_mul_(grads, (self._clip_norm / (norm + 1e-6)).clamp(max=1.0))

    def _hold(self, sent: list[tuple[Any, Any]]) -> None:
        """Holds what is being copied until it is."""
        self._sent.extend(sent)
        while self._sent and calls.happened(self._sent[0][0]):
            self._sent.popleft()


def _copy(source: Value, target: Tensor) -> None:
    """Copies a tensor, from the host by this thread alone: PyTorch would start threads for it."""
    assert isinstance(source, Tensor)
    if source.device.type == "cpu" and source.dtype != torch.bfloat16:
        np.copyto(target.numpy(), source.detach().numpy())
    else:
        target.copy_(source)


def _flatten(ids: list[Value], out: Tensor) -> None:
    """The ids of all layers, one after the other."""
    first = 0
    for value in ids:
        assert isinstance(value, Tensor)
        _copy(value.reshape(-1), out[first : first + value.numel()])
        first += value.numel()


def _make_capturable(optimizer: torch.optim.Optimizer | None, device: torch.device, *, scheduled: bool) -> bool:
    """True if the optimizer's step can be part of a graph; sets it up for that."""
    if optimizer is None:
        return True
    if all("capturable" in group for group in optimizer.param_groups):
        for group in optimizer.param_groups:
            group["capturable"] = True
            if scheduled:
                group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
        return True
    return isinstance(optimizer, torch.optim.SGD) and not scheduled
