"""The best placements seen, each once."""

from __future__ import annotations

import numpy as np

from heterps.schedule.problem import Floats, Placements


class Best:
    """At most `size` placements with the least values, best first; infinite values never join. Immutable."""

    def __init__(self, layers: int, size: int) -> None:
        self.placements: Placements = np.empty((0, layers), dtype=np.int32)
        self.values: Floats = np.empty(0)
        self._size = size

    def merged(self, placements: Placements, values: Floats) -> Best:
        """The best of these and the given ones."""
        pool, all_values = np.vstack([self.placements, placements]), np.concatenate([self.values, values])
        order = np.argsort(all_values, kind="stable")[: 4 * self._size]
        chosen: dict[bytes, int] = {}
        for i in order[np.isfinite(all_values[order])]:
            chosen.setdefault(pool[i].tobytes(), int(i))
        kept = list(chosen.values())[: self._size]
        made = Best(pool.shape[1], self._size)
        made.placements, made.values = pool[kept], all_values[kept]
        return made
