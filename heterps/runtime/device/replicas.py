"""A stage with several GPUs: micro-batch m goes to GPU m mod GPUs, and an update follows from all their gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from heterps.errors import InvalidInput
from heterps.models import Chain, Layer
from heterps.models.layer import SparseEmbedding
from heterps.runtime.placement import StageSpec
from heterps.runtime.rows import Rows
from heterps.runtime.stage import Stage, Step, Tensors


class ReplicatedStage(Stage):
    """A stage whose layers are on each of its devices; the first one has the weights, and the optimizer.

    What a GPU computes is only started here, so one thread keeps them all at work.
    """

    def __init__(self, spec: StageSpec, chain: Chain, rows: Sequence[Rows], **options: Any) -> None:
        """Makes a stage; see `Stage` for the arguments. The rows are shared: they give parts to any device."""
        super().__init__(spec, chain, rows, **options)
        own = {**options, "optimizer": torch.optim.SGD}  # never steps: weights are copied
        self._copies = [
            Stage(replace(spec, device=device, others=()), _copied(chain, spec), rows, **own) for device in spec.others
        ]

    def _replica(self, micro_batch: int) -> Stage | None:
        """The copy that computes a micro-batch; None for this one."""
        number = micro_batch % (len(self._copies) + 1)
        return self._copies[number - 1] if number else None

    def forward(self, step: Step, micro_batch: int, incoming: Tensors) -> Tensors:
        """See `Stage.forward`."""
        replica = self._replica(micro_batch)
        if replica is None:
            return super().forward(step, micro_batch, incoming)
        with _current(replica.spec.device):
            return replica.forward(step, micro_batch, incoming)

    def backward(self, step: Step, micro_batch: int, grads: Tensors) -> Tensors:
        """See `Stage.backward`."""
        replica = self._replica(micro_batch)
        if replica is None:
            return super().backward(step, micro_batch, grads)
        with _current(replica.spec.device):
            return replica.backward(step, micro_batch, grads)

    def squared_norm(self) -> Tensor:
        """See `Stage.squared_norm`: of the sums over all devices."""
        self._sum_gradients()
        return super().squared_norm()

    def apply(self, step: Step, *, scale: float = 1.0) -> Tensor | None:
        """See `Stage.apply`."""
        self._sum_gradients()
        loss = super().apply(step, scale=scale)
        for replica in self._copies:
            own = replica._loss_sums.pop(step.number, None)
            if own is not None:
                loss = own.to(self.spec.device) if loss is None else loss + own.to(loss.device)
        self._send_weights()
        return loss

    def _sum_gradients(self) -> None:
        """Takes the copies' gradients over; there are none left afterwards."""
        for replica in self._copies:
            for parameter, other in zip(self._trained, replica._trained, strict=True):
                if other.grad is None:
                    continue
                grad = other.grad.to(parameter.device, non_blocking=True)
                parameter.grad = grad if parameter.grad is None else parameter.grad.add_(grad)
                other.grad = None

    @torch.no_grad()
    def _send_weights(self) -> None:
        for replica in self._copies:
            with _unsafe_preserve_version_counter(replica._keep) if replica._keep else nullcontext():
                for ours, theirs in zip(_tensors(self), _tensors(replica), strict=True):
                    theirs.copy_(ours, non_blocking=True)

    def finish(self) -> None:
        """Brings everything back to the host, and gives the memory of the copies up."""
        super().finish()
        self._copies = []


def _tensors(stage: Stage) -> Iterator[Tensor]:
    """What changes from step to step: trained weights, and buffers (of running means)."""
    yield from stage._trained
    for layer in stage.layers:
        yield from layer.buffers()


def _copied(chain: Chain, spec: StageSpec) -> Chain:
    """The chain with copies of the stage's dense layers; the others, and all embeddings, are the same."""
    own = chain.layers[spec.first : spec.last + 1]
    same: list[Layer] = [layer for layer in chain.layers if layer not in own or isinstance(layer, SparseEmbedding)]
    try:
        return copy.deepcopy(chain, {id(layer): layer for layer in same})
    except Exception as error:
        names = ", ".join(layer.name for layer in own if isinstance(layer.module, nn.Module))
        raise InvalidInput(
            f"{spec} has several devices, and one of its layers ({names}) cannot be copied to each: {error}"
        ) from error


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Within it, a GPU is the one that is meant by `cuda`."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
