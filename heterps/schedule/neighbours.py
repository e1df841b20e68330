"""Placements one move away from a given one."""

from __future__ import annotations

import itertools

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
    for first, last in itertools.pairwise(cuts):
        for kind in range(types):
            moved = placement.copy()
            moved[first:last] = kind
            found.append(moved)
    distinct = {moved.tobytes(): moved for moved in found}
    distinct.pop(placement.tobytes(), None)
    batch = np.array(list(distinct.values()), dtype=np.int32).reshape(-1, layers)
    keep = runnable[np.arange(layers), batch].all(axis=1)
    return np.ascontiguousarray(batch[keep])


def segment_moves(
    placement: NDArray[np.int32], runnable: NDArray[np.bool_], *, most: int, rng: np.random.Generator
) -> Placements:
    """Every placement that gives one run of layers, of any length, another type; a random `most` of them if more.

    Wider than `neighbours` (it also opens new stages), and so dearer: layers² · types / 2 placements.
    """
    layers, types = runnable.shape
    firsts, lasts = np.triu_indices(layers)
    runs = np.repeat(np.stack([firsts, lasts], axis=1), types, axis=0)
    kinds = np.tile(np.arange(types, dtype=np.int32), len(firsts))
    if len(runs) > most:
        chosen = rng.choice(len(runs), most, replace=False)
        runs, kinds = runs[chosen], kinds[chosen]
    at = np.arange(layers)
    inside = (at >= runs[:, :1]) & (at <= runs[:, 1:])
    batch = np.where(inside, kinds[:, None], placement).astype(np.int32)
    keep = runnable[at, batch].all(axis=1) & (batch != placement).any(axis=1)
    return np.unique(batch[keep], axis=0) if keep.any() else batch[:0]


def stretches(
    placement: NDArray[np.int32], runnable: NDArray[np.bool_], *, most: int = 4000, short: int = 3
) -> Placements:
    """Every placement that gives one stretch of layers another type; each once, and runnable ones only.

    Where they are more than `most`, only stretches of up to `short` layers stay, and those that begin or end a stage
    and lie within it: some 5 · layers · types placements.
    """
    layers, types = runnable.shape
    firsts, lasts = np.triu_indices(layers)
    # Both ends must change: a stretch with an end that has the type already is a shorter one.
    differs = placement[:, None] != np.arange(types)
    barred = np.vstack([np.zeros(types, dtype=int), np.cumsum(~runnable, axis=0)])
    run, kind = np.nonzero(differs[firsts] & differs[lasts] & (barred[lasts + 1] == barred[firsts]))
    first, last = firsts[run, None], lasts[run, None]
    if len(run) > most:
        cuts = np.concatenate([[0], np.flatnonzero(np.diff(placement)) + 1, [layers]])
        stage = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts))
        at_edge = (first == cuts[stage[first]]) | (last + 1 == cuts[stage[last] + 1])
        keep = ((last - first < short) | (at_edge & (stage[first] == stage[last])))[:, 0]
        first, last, kind = first[keep], last[keep], kind[keep]
    at = np.arange(layers)
    return np.where((at >= first) & (at <= last), kind[:, None], placement).astype(np.int32)


def crossings(parents: Placements, runnable: NDArray[np.bool_], count: int, rng: np.random.Generator) -> Placements:
    """At most `count` placements that begin as one parent and end as another; half of them with one run retyped too."""
    layers, types = runnable.shape
    one, other = parents[rng.integers(len(parents), size=(2, count))]
    at = np.arange(layers)
    batch = np.where(at < rng.integers(layers + 1, size=(count, 1)), one, other)
    first, last = np.sort(rng.integers(layers, size=(2, count, 1)), axis=0)
    retyped = (at >= first) & (at <= last) & (rng.random((count, 1)) < 0.5)
    batch = np.where(retyped, rng.integers(types, size=(count, 1)), batch).astype(np.int32)
    return np.ascontiguousarray(batch[runnable[at, batch].all(axis=1)])
