"""Faster float32 matrix products on a GPU, for what is recorded as a graph.

The float32 units of a data centre's GPU are far slower than its tensor cores, which take shorter numbers: for layers of
some hundred units they bind the step. A float32 product from several products of shorter numbers
(`heterps.runtime.device.tiles`) has errors of the same size, and takes less time: on an H200, for layers of 400 units,
half of cuBLAS's, and three quarters for gradients of weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FAST = {(8, 0), (9, 0), (10, 0), (10, 3)}
"""GPUs (by compute capability) whose tensor cores are at least six times as fast with TF32 as float32 units."""
LEAST_LONG, LEAST_SIDE, MOST_SIDE = 1024, 32, 4096
"""Of a product worth it: the least length of its long side, and what the other two may be."""


def exact_products(device: torch.device) -> AbstractContextManager[Any]:
    """Within it, float32 products on the device are made of products of shorter numbers, where that is faster.

    Nothing changes if PyTorch is allowed to compute float32 products less accurately. Adds time on the host to each
    operation: meant for recording graphs.
    """
    good = torch.cuda.get_device_capability(device) in FAST and find_spec("triton") is not None
    if not good or torch.get_float32_matmul_precision() != "highest":
        return nullcontext()
    return _Products()  # type: ignore[no-untyped-call]


class _Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
    broken = False
    """True if kernels cannot be compiled on this machine; then products are PyTorch's."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = None
        try:
            if func is torch.ops.aten.mm.default and not _Products.broken:
                result = _product(*args)
            elif func is torch.ops.aten.addmm.default and not kwargs and not _Products.broken:
                result = _product(args[1], args[2], args[0])
        except Exception as error:  # Triton needs a C compiler, and has many ways to say so
            _Products.broken = True
            warnings.warn(f"float32 products take the slower way: {error}", stacklevel=2)
        return func(*args, **(kwargs or {})) if result is None else result


def _product(a: Tensor, b: Tensor, add: Tensor | None = None) -> Tensor | None:
    """The product of a and b plus what broadcasts, or None if it does not fit here."""
    from heterps.runtime.device import tiles  # Triton takes a second to import, and is there with CUDA only

    if not all(t.is_cuda and t.dtype == torch.float32 for t in (a, b, *(() if add is None else (add,)))):
        return None
    (rows, depth), columns = a.shape, b.shape[1]
    if rows >= LEAST_LONG and _fit(depth, columns) and a.stride(1) == 1:
        return tiles.wide(a, b, add)
    if depth >= LEAST_LONG and _fit(rows, columns) and add is None:
        return tiles.deep(a, b)
    return None


def _fit(*sides: int) -> bool:
    return all(LEAST_SIDE <= side <= MOST_SIDE for side in sides)
