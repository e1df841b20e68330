"""Rows that cross as distinct ones (`Lookup`) as plain tensors of a message, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from heterps.ps.errors import WireError
from heterps.runtime.rows import Lookup
from heterps.runtime.stage import Tensors
from heterps.runtime.transit import arrived

ROWS, NUMBER, SHAPE = "\0rows", "\0number", "\0shape"
"""Behind the name of the tensor that a lookup stands for."""


def packed(tensors: Tensors) -> dict[str, Tensor | None]:
    """Tensors as a message carries them; what a GPU still writes is waited for."""
    plain: dict[str, Tensor | None] = {}
    for name, value in tensors.items():
        if isinstance(value, Lookup):
            plain |= {name + ROWS: value.rows, name + NUMBER: value.number, name + SHAPE: torch.tensor(value.shape)}
        else:
            plain[name] = arrived(value)
    return plain


def unpacked(tensors: Mapping[str, Tensor | None]) -> Tensors:
    """The inverse of `packed`."""
    found: dict[str, Any] = {}
    for name, value in tensors.items():
        base, mark, _ = name.partition("\0")
        if not mark:
            found[name] = value
        elif base not in found:
            rows, number, shape = (tensors.get(base + part) for part in (ROWS, NUMBER, SHAPE))
            if rows is None or number is None or shape is None:
                raise WireError(f"malformed message: a lookup {base!r} without all of its parts")
            found[base] = Lookup(rows, number, tuple(shape.tolist()))
    return found
