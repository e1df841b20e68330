"""How a pass goes through files: in which order, which stretches, and what is read together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heterps import _native


class Run(NamedTuple):
    """A stretch of a file: bytes of a text, or rows of a Parquet row group."""

    file: int
    group: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Bytes or rows."""
        return self.end - self.begin


def one_pass(
    runs: Sequence[Run], *, key: int | None, shard: tuple[int, int], most: int, together: int
) -> list[list[Run]]:
    """The parts of a pass for one shard.

    The runs are shuffled by `key` (None: left in order) and laid end to end; shard i of n takes from i/n to (i+1)/n of
    the whole, so that shards differ by one byte or row at most. What it has is cut into stretches of at most `most`,
    and as many of them as are within `together` make a part.
    """
    if key is not None:
        runs = [runs[i] for i in _native.permutation(len(runs), key, 0, 1, len(runs))]
    total = sum(run.size for run in runs)
    first, last = total * shard[0] // shard[1], total * (shard[0] + 1) // shard[1]
    parts: list[list[Run]] = []
    at, filled = 0, together
    for run in runs:
        begin, end = max(first - at, 0), min(last - at, run.size)
        at += run.size
        for start in range(begin, end, most):
            piece = run._replace(begin=run.begin + start, end=run.begin + min(start + most, end))
            if filled + piece.size > together:
                parts.append([])
                filled = 0
            parts[-1].append(piece)
            filled += piece.size
    return parts
