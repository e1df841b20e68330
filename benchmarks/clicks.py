"""Batches of clicks for benchmarks, the same for whoever asks; NumPy alone, so that peers can make them too."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

SLOTS, DENSE = 26, 13

Arrays = dict[str, NDArray[Any]]


def batches(*, rows: int, size: int, count: int, ids: str = "zipf") -> list[Arrays]:
    """`count` batches of `size` samples: 26 ids below `rows`, 13 numbers and a label each.

    Ids are uniform, or Zipf (1.05) with popular ones anywhere.
    """
    rng = np.random.default_rng(0)
    if ids == "zipf":
        weights = np.arange(1, rows + 1, dtype=np.float64) ** -1.05
        cumulated = np.cumsum(weights / weights.sum())
        order = rng.permutation(rows)
    made = []
    for _ in range(count):
        if ids == "zipf":
            drawn = order[np.searchsorted(cumulated, rng.random((size, SLOTS))).clip(max=rows - 1)]
        else:
            drawn = rng.integers(0, rows, (size, SLOTS))
        made.append(
            {
                "ids": np.ascontiguousarray(drawn),
                "dense": rng.standard_normal((size, DENSE), dtype=np.float32),
                "label": (rng.random(size) < 0.25).astype(np.float32),
            }
        )
    return made
