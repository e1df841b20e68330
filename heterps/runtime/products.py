"""Products of linear layers on the cores, by the library that is fastest there.

On AMD processors PyTorch's MKL leaves AVX-512 unused: a float32 product of 4096 × 416 by 416 × 64 ran at 113 GFLOP/s
on a core, and at 265 by oneDNN, which PyTorch has, too, but uses for other types only (measured). Linear layers are
found as PyTorch calls them, so models stay ordinary modules; both libraries add up float32 in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from heterps.runtime.threads import omp_threads

LEAST = 1 << 20
"""Multiplications of a product from which oneDNN is faster (measured: it takes 10 µs to begin)."""


@cache
def pays() -> bool:
    """Whether oneDNN is faster than what PyTorch takes here: on AMD processors with AVX-512."""
    info = Path("/proc/cpuinfo")
    amd = info.exists() and "AuthenticAMD" in info.read_text()
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    there = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")  # type: ignore[no-untyped-call]
    return amd and wide and there


class Products(TorchFunctionMode):
    """While it is entered, linear layers of float32 that are large enough multiply by oneDNN, with so many threads."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self._threads = threads

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Calls the function, or what stands for it."""
        if func is functional.linear and not kwargs and _fits(*args):
            values, weight, bias = (*args, None)[:3]
            flat = values if values.ndim == 2 else values.reshape(-1, values.shape[-1])
            result: Tensor = _Linear.apply(flat, weight, bias, self._threads)  # type: ignore[no-untyped-call]
            return result if values.ndim == 2 else result.view(*values.shape[:-1], len(weight))
        return func(*args, **(kwargs or {}))


def _fits(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    tensors = [values, weight] if bias is None else [values, weight, bias]
    if any(type(one) not in (Tensor, torch.nn.Parameter) or not one.is_cpu for one in tensors):
        return False
    plain = all(one.dtype == torch.float32 and one.layout == torch.strided for one in tensors)
    return plain and weight.ndim == 2 and values.ndim >= 2 and values.shape[:-1].numel() * weight.numel() >= LEAST


class _Linear(torch.autograd.Function):
    """A linear layer and its gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor, bias: Tensor | None, threads: int) -> Tensor:
        weight = _readable(weight)
        ctx.save_for_backward(values, weight)
        ctx.threads = threads
        return _product(values, weight, bias, threads)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        values, weight = ctx.saved_tensors
        by_values = _product(grad, weight.t(), None, ctx.threads) if ctx.needs_input_grad[0] else None
        by_weight = _product(grad.t(), values.t(), None, ctx.threads) if ctx.needs_input_grad[1] else None
        return by_values, by_weight, grad.sum(0) if ctx.needs_input_grad[2] else None, None


def _product(left: Tensor, right: Tensor, bias: Tensor | None, threads: int) -> Tensor:
    """The product of `left` and the transposed `right`, plus `bias`."""
    with omp_threads(threads):
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            _readable(left), _readable(right), None if bias is None else bias.contiguous(), "none", [], ""
        )
    return result


def _readable(matrix: Tensor) -> Tensor:
    """As it is, or a copy if neither rows nor columns lie side by side: there oneDNN takes a thousand times as long."""
    return matrix if matrix.is_contiguous() or matrix.t().is_contiguous() else matrix.contiguous()
