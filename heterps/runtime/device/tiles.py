"""Matrix products of float32 numbers by tensor cores, in tiles: the kernels of `heterps.runtime.device.products`.

A float32 number is split into a TF32 number and a rest that is one nearly; the product of two is then three products of
TF32 numbers (that of the two rests is too small to count). Each step's three are summed by themselves before they join
the total, because tensor cores cut off what they add to large sums.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

SPLIT = 1024
"""Numbers that one program splits."""
WIDE = {"height": 128, "width": 64, "step": 32, "num_warps": 8, "num_stages": 3}
"""Tiles of the product of a long matrix with a small one; these and the next are the fastest found on an H200."""
DEEP = {"height": 64, "width": 64, "step": 32, "num_warps": 4, "num_stages": 3}
"""Tiles of the product of two long matrices along their length."""
LEAST_DEPTH = 512
"""Length that one program sums up at least."""
PROGRAMS = 1536
"""Programs that keep a large GPU evenly busy."""


def wide(a: Tensor, b: Tensor, add: Tensor | None) -> Tensor:
    """Product of a [M, K] and b [K, N], plus what broadcasts to [M, N]; a's rows are contiguous, b is small."""
    (rows, depth), columns = a.shape, b.shape[1]
    halves = a.new_empty(2, columns, depth)
    _split[(triton.cdiv(b.numel(), SPLIT),)](b, halves, columns, depth, *b.stride(), size=SPLIT)
    out = a.new_empty(rows, columns)
    term, strides = (out, (0, 0)) if add is None else (add, add.expand(rows, columns).stride())
    grid = (triton.cdiv(rows, WIDE["height"]) * triton.cdiv(columns, WIDE["width"]),)
    _wide[grid](a, halves, term, out, rows, columns, depth, a.stride(0), *strides, adds=add is not None, **WIDE)
    return out


def deep(a: Tensor, b: Tensor) -> Tensor:
    """Product of a [M, K] and b [K, N] with a large K; strides may be any."""
    (rows, depth), columns = a.shape, b.shape[1]
    tiles = triton.cdiv(rows, DEEP["height"]) * triton.cdiv(columns, DEEP["width"])
    parts = max(1, min(depth // LEAST_DEPTH, PROGRAMS // tiles))
    length = triton.cdiv(triton.cdiv(depth, parts), DEEP["step"]) * DEEP["step"]
    out = a.new_empty(parts, rows, columns)
    _deep[(tiles, parts)](a, b, out, rows, columns, depth, length, *a.stride(), *b.stride(), **DEEP)
    return out[0] if parts == 1 else out.sum(0)


@triton.jit
def _split(source, halves, columns, depth, down, across, size: tl.constexpr):
    """Both halves of [depth, columns], each as [columns, depth]."""
    at = tl.program_id(0) * size + tl.arange(0, size)
    here = at < columns * depth
    value = tl.load(source + (at % depth) * down + (at // depth) * across, mask=here)
    high = _high(value)
    tl.store(halves + at, high, mask=here)
    tl.store(halves + columns * depth + at, value - high, mask=here)


@triton.jit
def _high(value):
    """The nearest number of 11 bits."""
    return ((value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def _wide(
    a, halves, term, out, rows, columns, depth, a_row, term_row,
    term_column, adds: tl.constexpr, height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(columns, width)
    row = (tl.program_id(0) // tiles) * height + tl.arange(0, height)
    column = (tl.program_id(0) % tiles) * width + tl.arange(0, width)
    row_here, column_here = row < rows, column < columns
    start = row[:, None].to(tl.int64)
    total = tl.zeros((height, width), dtype=tl.float32)
    for first in range(0, depth, step):
        k = first + tl.arange(0, step)
        x = tl.load(a + start * a_row + k[None, :], mask=row_here[:, None] & (k[None, :] < depth), other=0.0)
        at = halves + column[None, :] * depth + k[:, None]
        mask = (k[:, None] < depth) & column_here[None, :]
        high = tl.load(at, mask=mask, other=0.0)
        low = tl.load(at + columns * depth, mask=mask, other=0.0)
        x_high = _high(x)
        part = tl.dot(x - x_high, high, input_precision="tf32")
        part = tl.dot(x_high, low, part, input_precision="tf32")
        part = tl.dot(x_high, high, part, input_precision="tf32")
        total += part
    mask = row_here[:, None] & column_here[None, :]
    if adds:
        total += tl.load(term + start * term_row + column[None, :] * term_column, mask=mask, other=0.0)
    tl.store(out + start * columns + column[None, :], total, mask=mask)


@triton.jit
def _deep(
    a, b, out, rows, columns, depth, length, a_row, a_column, b_row,
    b_column, height: tl.constexpr, width: tl.constexpr, step: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(columns, width)
    row = (tl.program_id(0) // tiles) * height + tl.arange(0, height)
    column = (tl.program_id(0) % tiles) * width + tl.arange(0, width)
    row_here, column_here = row < rows, column < columns
    begin = tl.program_id(1) * length
    end = tl.minimum(depth, begin + length)
    total = tl.zeros((height, width), dtype=tl.float32)
    for first in range(begin, end, step):
        k = (first + tl.arange(0, step)).to(tl.int64)
        x_mask = row_here[:, None] & (k[None, :] < end)
        y_mask = (k[:, None] < end) & column_here[None, :]
        x = tl.load(a + row[:, None] * a_row + k[None, :] * a_column, mask=x_mask, other=0.0)
        y = tl.load(b + k[:, None] * b_row + column[None, :] * b_column, mask=y_mask, other=0.0)
        total = tl.dot(x, y, total, input_precision="bf16x6")
    start = out + tl.program_id(1).to(tl.int64) * rows * columns
    mask = row_here[:, None] & column_here[None, :]
    tl.store(start + row[:, None] * columns + column[None, :], total, mask=mask)
