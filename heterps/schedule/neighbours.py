"""Placements one move away from a given one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps.schedule.problem import Placements


def neighbours(placement: NDArray[np.int32], runnable: NDArray[np.bool_], *, shifts: int = 3) -> Placements:
    """Every placement that moves one cut by up to `shifts` layers or gives one stage another type; runnable ones only.

    A stage that takes its neighbour's type merges with it, and one that is shifted away disappears. The result has
    shape [count, layers], without repeats and without the placement itself.
    """
    layers, types = runnable.shape
    cuts = [0, *(np.flatnonzero(np.diff(placement)) + 1).tolist(), layers]
    found = []
    for cut in cuts[1:-1]:
        for shift in range(1, shifts + 1):
            later, earlier = placement.copy(), placement.copy()
            later[cut : cut + shift] = placement[cut - 1]
            earlier[max(0, cut - shift) : cut] = placement[cut]
            found += [later, earlier]
    for first, last in zip(cuts, cuts[1:], strict=False):
        for kind in range(types):
            moved = placement.copy()
            moved[first:last] = kind
            found.append(moved)
    distinct = {moved.tobytes(): moved for moved in found}
    distinct.pop(placement.tobytes(), None)
    batch = np.array(list(distinct.values()), dtype=np.int32).reshape(-1, layers)
    keep = runnable[np.arange(layers), batch].all(axis=1)
    return np.ascontiguousarray(batch[keep])
