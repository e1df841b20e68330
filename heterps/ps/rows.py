"""Rows on the wire: float32 as they are, or rounded to half the bytes."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Compress = Literal["bf16", "fp16"]
COMPRESS = ("bf16", "fp16")
FP16_MAX = 65504.0


def pack(rows: NDArray[np.float32], compress: str | None) -> NDArray[Any]:
    """Rows as they travel. fp16 saturates at ±65504; bf16 rounds to nearest, ties to even. NaN stays NaN."""
    if compress is None:
        return rows
    if compress == "fp16":
        return np.clip(rows, -FP16_MAX, FP16_MAX).astype(np.float16)
    bits = np.ascontiguousarray(rows).view(np.uint32)
    rounded = (bits >> 16) & np.uint32(1)
    rounded += bits
    rounded += np.uint32(0x7FFF)
    rounded >>= np.uint32(16)
    packed = rounded.astype(np.uint16)
    broken = np.isnan(rows)
    if broken.any():  # rounding may carry a NaN into an infinity
        packed[broken] = 0x7FC0
    return packed


def unpack(packed: NDArray[Any], out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
    """Rows as float32, written into `out` if given; without it, float32 comes back as it is."""
    if packed.dtype == np.uint16:
        bits = np.empty(packed.shape, np.uint32) if out is None else out.view(np.uint32)
        np.left_shift(packed, 16, out=bits, dtype=np.uint32, casting="unsafe")
        return bits.view(np.float32)
    if out is None:
        return packed if packed.dtype == np.float32 else packed.astype(np.float32)
    out[...] = packed
    return out
