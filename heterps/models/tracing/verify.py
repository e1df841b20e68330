"""Checks a chain against the module it was cut from, on the example: results, gradients and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from heterps.errors import InvalidInput
from heterps.models.batch import Value, batch_size, cut
from heterps.models.chain import Chain
from heterps.models.tracing.trace import Traced, evaluating
from heterps.models.tracing.where import REMEDY


def verify(
    chain: Chain, traced: Traced, embeddings: Sequence[fx.Node], example: Mapping[str, Value], *, gives_loss: bool
) -> None:
    """The chain gives what the module gives, and micro-batches what the batch gives: else an `InvalidInput`.

    `embeddings` are the calls that became the chain's embeddings, in their order.
    """
    size, parts = batch_size(example), cut(example, 2)
    modules: list[Any] = [traced.embedding(node) for node in embeddings]
    for layer, module in zip(chain.embeddings, modules, strict=True):
        layer.table = _Weight(module.weight)
        if len(layer.ids_of(example)) != size:
            raise InvalidInput(f"embedding {layer.name!r}: ids have the samples first, as the batch has")
    try:
        with evaluating(traced.model), evaluating(chain), _gradients_possible(modules):
            expected = traced.model(**traced.arguments(traced.example))
            whole, halves = chain(example), [chain(part) for part in parts]
    finally:
        for layer in chain.embeddings:
            layer.table = None
    given = expected[0] if isinstance(expected, tuple | list) else expected
    result = whole[chain.loss] if gives_loss else whole[str(chain.score)]
    if not _close(result, given):
        raise InvalidInput("the layers do not give what the module gives for the example; build the Chain by hand")
    _refuse_other_gradients(result, given, traced.model)
    loss, losses = whole[chain.loss].detach(), torch.stack([half[chain.loss].detach() for half in halves])
    mean = losses @ torch.tensor([batch_size(part) / size for part in parts]).to(losses)
    if not _close(mean, loss):
        raise InvalidInput(
            "the loss of a batch is not the mean over its samples: halves of the example give "
            f"{float(mean):g}, the whole {float(loss):g}; micro-batches would change the result"
        )


class _Weight:
    """A module's weight as a table: gradients flow into it, as they would into the rows."""

    def __init__(self, weight: Tensor) -> None:
        self.weight = weight

    def pull(self, ids: Tensor, *, create: bool = True) -> Tensor:
        return functional.embedding(ids, self.weight, sparse=True)

    def bag(self, ids: Tensor, offsets: Tensor, *, mode: Any = "sum", create: bool = True) -> Tensor:
        return functional.embedding_bag(ids, self.weight, offsets, mode=mode, sparse=True)


@contextmanager
def _gradients_possible(embeddings: Sequence[Any]) -> Iterator[None]:
    """Gradients in evaluation, those of embeddings sparse: of the example's rows alone, however many there are."""
    sparse = {module: module.sparse for module in embeddings}
    cudnn = torch.backends.cudnn.enabled
    try:
        torch.backends.cudnn.enabled = False  # it has no backward in evaluation
        for module in sparse:
            module.sparse = True
        with torch.enable_grad():
            yield
    finally:
        torch.backends.cudnn.enabled = cudnn
        for module, before in sparse.items():
            module.sparse = before


def _refuse_other_gradients(ours: Tensor, theirs: Tensor, model: nn.Module) -> None:
    """Weights and rows that training would move otherwise than the module's own gradients are an `InvalidInput`."""
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    both = zip(*(_gradients(result, list(weights.values())) for result in (ours, theirs)), strict=True)
    wrong = [repr(name) for name, (one, other) in zip(weights, both, strict=True) if not _same(one, other)]
    if wrong:
        raise InvalidInput(
            f"{', '.join(wrong)} would get other gradients in the layers than in the module, as tracing sees neither "
            "torch.no_grad() nor the backward of an autograd.Function. For the first use detach(), or weights with "
            f"requires_grad=False; for the second {REMEDY}"
        )


def _gradients(result: Tensor, weights: list[nn.Parameter]) -> list[Tensor | None]:
    """Gradients of a sum of the results, each times another number: those of a softmax cancel out if all are equal."""
    if not weights or not result.requires_grad:
        return [None] * len(weights)
    factors = torch.linspace(1, 2, result.numel()).to(result).view_as(result)
    return list(torch.autograd.grad(result, weights, factors, allow_unused=True))


def _same(ours: Tensor | None, theirs: Tensor | None) -> bool:
    """True for close gradients. One that is zero is not the same as none: it may be zero for the example alone."""
    if ours is None or theirs is None:
        return ours is theirs
    if ours.is_sparse and theirs.is_sparse:
        ours, theirs = ours.coalesce(), theirs.coalesce()
        return torch.equal(ours.indices(), theirs.indices()) and _close(ours.values(), theirs.values())
    return _close(ours.to_dense(), theirs.to_dense())


def _close(ours: Tensor, theirs: Tensor) -> bool:
    """Equal but for rounding, measured by the largest value."""
    if ours.shape != theirs.shape:
        return False
    scale = float(theirs.detach().abs().max().nan_to_num()) if theirs.numel() else 0.0
    return torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3 * scale + 1e-6, equal_nan=True)
