"""NumPy arrays and torch CPU tensors in and out; torch is not imported unless a tensor comes in."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.errors import InvalidInput


def is_tensor(value: Any) -> bool:
    """True for a torch tensor."""
    return type(value).__module__.split(".")[0] == "torch"


def to_numpy(value: Any, dtype: type[np.generic], what: str) -> NDArray[Any]:
    """An array of exactly `dtype` that shares memory with `value` where it can; Python lists are converted."""
    if is_tensor(value):
        if value.device.type != "cpu":
            raise InvalidInput(f"{what}: a CPU tensor, not one on {value.device}; move it with .cpu()")
        value = value.detach().numpy()
    elif not isinstance(value, np.ndarray):
        value = np.asarray(value, dtype=dtype)
    if value.dtype != dtype:
        raise InvalidInput(f"{what}: {np.dtype(dtype)}, not {value.dtype}")
    array: NDArray[Any] = value
    return array


def like(result: NDArray[Any], model: Any) -> Any:
    """`result` as a tensor if `model` is one; shares its memory."""
    if not is_tensor(model):
        return result
    import torch

    return torch.from_numpy(result)
