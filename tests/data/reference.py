"""What the sources should give, in plain Python: the hash, the Criteo format, rows as comparable values."""

from __future__ import annotations

import itertools
import math
import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from heterps.data import Read
from heterps.models import Bags

_MASK = 2**64 - 1


def mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def hash_bytes(key: int, data: bytes) -> int:
    """Written from the text of heterps/data/hashing.py, not from its code."""
    padded = data + b"\0" * (-len(data) % 8)
    for word in struct.unpack(f"<{len(padded) // 8}Q", padded):
        key = mix(((key ^ word) + 0x9E3779B97F4A7C15) & _MASK)
    return mix(((key ^ len(data)) + 0x9E3779B97F4A7C15) & _MASK)


def reference_id(slot: str, value: str | bytes) -> int:
    data = value.encode() if isinstance(value, str) else value
    (signed,) = struct.unpack("<q", struct.pack("<Q", hash_bytes(hash_bytes(0, slot.encode()), data)))
    return int(signed)


def float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


Row = tuple[Any, ...]
"""Values by column in the order of names; a row's bag as a tuple."""


def criteo_row(line: str) -> Row:
    """(dense, ids, label) of a sound line."""
    label, *fields = line.split("\t")
    dense = tuple(float32(math.log1p(max(int(x), 0))) if x else 0.0 for x in fields[:13])
    return dense, tuple(reference_id(f"C{i + 1}", x) for i, x in enumerate(fields[13:])), float(label)


def criteo_lines(count: int, *, seed: int, first: int = 0) -> list[str]:
    """Lines that all differ, by their first count."""
    rng = random.Random(seed)
    return [
        "\t".join(
            [
                str(rng.randint(0, 1)),
                str(first + i),
                *("" if rng.random() < 0.3 else str(rng.randint(-3, 3000)) for _ in range(12)),
                *("" if rng.random() < 0.2 else f"{rng.getrandbits(32):08x}" for _ in range(26)),
            ]
        )
        for i in range(count)
    ]


def rows_of(reads: Iterable[Read]) -> list[Row]:
    """The rows of all batches, in the order of reading."""
    return [row for read in reads for row in rows_of_batch(read.batch)]


def rows_of_batch(batch: dict[str, torch.Tensor | Bags]) -> list[Row]:
    columns: list[Sequence[Any]] = []
    for name in sorted(batch):
        value = batch[name]
        if isinstance(value, Bags):
            ids, offsets = value.ids.tolist(), value.offsets.tolist()
            columns.append([tuple(ids[a:b]) for a, b in itertools.pairwise(offsets)])
        else:
            columns.append([tuple(row) if isinstance(row, list) else row for row in value.tolist()])
    return list(zip(*columns, strict=True))
