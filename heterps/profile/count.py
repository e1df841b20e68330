"""What a layer moves and computes, counted from one forward and backward of a small batch; nothing is timed here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from heterps.models import Chain, run_layer
from heterps.models.batch import Bags, Batch, Value, batch_size
from heterps.models.layer import Layer, SparseEmbedding
from heterps.schedule.roofline import ADAM_MOVES, FLOAT_BYTES, ID_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """One layer for one batch of the size that was asked for."""

    name: str
    kind: str
    input_bytes: int
    """All that the layer reads: tensors of the batch and of earlier layers."""
    output_bytes: int
    """All that is alive behind the layer: what crosses, if the next one is elsewhere."""
    flops: float
    """Of forward and backward, a multiplication and an addition as two."""
    moved_bytes: float
    """Through memory, in forward, backward and update: activations and their gradients, weights and their state."""
    parameter_bytes: int
    """Of dense weights."""
    rows: int = 0
    """Looked up in a table."""
    row_bytes: int = 0

    @property
    def random_bytes(self) -> int:
        """Of rows, which lie at random places: read by the pull, read and written by the push."""
        return 3 * self.rows * self.row_bytes

    @property
    def exchanged_bytes(self) -> int:
        """Between a unit and a parameter server: rows pulled, gradients pushed, ids with both."""
        return 2 * self.rows * (self.row_bytes + ID_BYTES)


def count_layers(chain: Chain, batch: Batch, *, samples: int, precision: torch.dtype = torch.float32) -> list[Count]:
    """Counts every layer on a small batch, and scales what grows with the samples to `samples` of them.

    The chain's tables must be bound; they are read only. Activations have the size that `precision` gives them.
    """
    scale = samples / batch_size(batch)
    values: dict[str, Any] = dict(batch)
    counts = []
    for number, layer in enumerate(chain.layers):
        flops = _run(layer, values, chain, precision)
        read = sum(_bytes(values[name]) for name in layer.reads)
        written = sum(_bytes(values[name]) for name in layer.writes)
        alive = sum(_bytes(values[name]) for name in chain.alive(number + 1))
        weights = sum(parameter.numel() * parameter.element_size() for parameter in layer.parameters())
        rows = _rows(layer, values)
        passes = 0 if rows else 3 * (read + written) * scale
        update = ADAM_MOVES * weights if any(p.requires_grad for p in layer.parameters()) else 0
        counts.append(Count(
            name=layer.name, kind=layer.kind, input_bytes=round(read * scale), output_bytes=round(alive * scale),
            flops=flops * scale, moved_bytes=passes + 3 * weights + update, parameter_bytes=weights,
            rows=round(rows * scale), row_bytes=layer.dim * FLOAT_BYTES if isinstance(layer, SparseEmbedding) else 0,
        ))  # fmt: skip
    return counts


def dense_state_bytes(layer: Layer, optimizer: torch.optim.Optimizer | None) -> int:
    """Weights, buffers and the optimizer's state, as they lie in memory."""
    held = [*layer.parameters(), *layer.buffers()]
    if optimizer is not None:
        held += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return sum(value.numel() * value.element_size() for value in held)


def _run(layer: Layer, values: dict[str, Any], chain: Chain, precision: torch.dtype) -> float:
    """Runs a layer forward and backward, adds what it writes to `values`, and gives the FLOPs of both.

    What comes with the batch needs no gradients, as in a run.
    """
    if isinstance(layer, SparseEmbedding):
        values.update(layer.written(layer(*(values[name] for name in layer.reads))))
        return 0.0
    read: Mapping[str, Any] = {
        name: _leaf(values[name], trained=chain.writer(name) is not None) for name in layer.reads
    }
    with FlopCounterMode(display=False) as counter:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision != torch.float32):
            written = run_layer(layer, read)
        roots = [value for value in written.values() if isinstance(value, Tensor) and value.requires_grad]
        if roots:
            torch.autograd.backward(roots, [torch.zeros_like(root) for root in roots])
    for parameter in layer.parameters():
        parameter.grad = None
    values.update({name: value.detach() for name, value in written.items()})
    return float(counter.get_total_flops())


def _leaf(value: Any, *, trained: bool) -> Any:
    """A copy, which may be worked on in place."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().requires_grad_(trained and value.is_floating_point()).clone()


def _rows(layer: Layer, values: Mapping[str, Any]) -> int:
    if not isinstance(layer, SparseEmbedding):
        return 0
    ids = layer.ids_of(values)
    return len(ids.ids) if isinstance(ids, Bags) else ids.numel()


def _bytes(value: Value) -> int:
    if isinstance(value, Bags):
        return value.ids.numel() * value.ids.element_size() + value.offsets.numel() * value.offsets.element_size()
    return value.numel() * value.element_size()
