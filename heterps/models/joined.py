"""Linear layers of several tensors side by side, without putting them there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.errors import InvalidInput


def joined(values: Sequence[Tensor]) -> Tensor:
    """The tensors flattened to [B, features] and put side by side; a single one is not copied."""
    flat = [value.reshape(len(value), -1) for value in values]
    return flat[0] if len(flat) == 1 else torch.cat(flat, dim=1)


def spend(value: Tensor) -> Tensor:
    """Marks a tensor that one layer reads and whose memory nobody needs afterwards: its gradient may lie there."""
    value.spent = True  # type: ignore[attr-defined]
    return value


def joined_linear(linear: nn.Linear, values: Sequence[Tensor]) -> Tensor:
    """A linear layer of tensors side by side: the sum of its parts. Gradients of tensors of `spend` overwrite them."""
    widths = [value.shape[1:].numel() for value in values]
    if sum(widths) != linear.in_features:
        raise InvalidInput(
            f"the tensors read have {sum(widths)} features together, the layer takes {linear.in_features}"
        )
    if linear.bias is not None and any(getattr(value, "spent", False) for value in values):
        result: Tensor = _Spending.apply(linear.weight, linear.bias, *values)  # type: ignore[no-untyped-call]
        return result
    flat = [value.reshape(len(value), -1) for value in values]
    first, *rest = torch.split(linear.weight, widths, dim=1)
    result = functional.linear(flat[0], first, linear.bias)
    for value, part in zip(flat[1:], rest, strict=True):
        result = torch.addmm(result, value, part.t())
    return result


class _Spending(torch.autograd.Function):
    """The same, with a tensor's gradient where the tensor lies: that is in the caches, and needed no more."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, bias: Tensor, *values: Tensor) -> Tensor:
        flat = [value.reshape(len(value), -1) for value in values]
        ctx.save_for_backward(weight, *values)
        ctx.spent = [getattr(value, "spent", False) and value.is_contiguous() for value in values]
        first, *rest = torch.split(weight, [value.shape[1] for value in flat], dim=1)
        result = functional.linear(flat[0], first, bias)
        for value, part in zip(flat[1:], rest, strict=True):
            result.addmm_(value, part.t())
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        weight, *values = ctx.saved_tensors
        by_weight = torch.empty_like(weight.t(), memory_format=torch.contiguous_format)
        found: list[Tensor | None] = []
        first = 0
        for number, value in enumerate(values):
            flat = value.data.reshape(len(value), -1)  # other parts of the same memory need not know of a change
            last = first + flat.shape[1]
            torch.mm(flat.t(), grad, out=by_weight[first:last])
            by_value = None
            if ctx.needs_input_grad[2 + number]:
                room = flat if ctx.spent[number] else torch.empty_like(flat)
                by_value = torch.mm(grad, weight[:, first:last], out=room).view(value.shape)
            found.append(by_value)
            first = last
        return by_weight.t(), grad.sum(0), *found
