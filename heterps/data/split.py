"""Held-out rows: chosen by a hash of each row's key, so that neither order, shards nor resuming change them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps.data.hashing import key_of, mix_array
from heterps.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Split:
    """One side of a split: the `fraction` held out, or the rest."""

    fraction: float
    seed: int
    held_out: bool

    def __post_init__(self) -> None:
        if not 0 <= self.fraction < 1:
            raise InvalidInput(f"the fraction held out lies in [0, 1), not {self.fraction!r}")

    @property
    def share(self) -> float:
        """Of the rows, how many are on this side (expected)."""
        return self.fraction if self.held_out else 1 - self.fraction


def kept(splits: Sequence[Split], keys: NDArray[np.uint64]) -> NDArray[np.bool_] | None:
    """Which rows of these keys are on the right side of every split; None if there is no split.

    A split of a split hashes with another key, so that the two are independent even with the same seed.
    """
    if not splits:
        return None
    keep = np.ones(len(keys), dtype=np.bool_)
    for depth, split in enumerate(splits):
        hashed = mix_array(keys + np.uint64(key_of(split.seed, depth)))
        keep &= (hashed < np.uint64(int(split.fraction * 2**64))) == split.held_out
    return keep
