"""Click data as it might be, with a known best predictor: nothing to download, any size, the same everywhere."""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from heterps import _native
from heterps.data import rows
from heterps.data.filesource import check_choice, check_whole, fingerprint
from heterps.data.hashing import key_of, slot_key
from heterps.data.reader import Part, Pass, Place
from heterps.data.rows import Columns, Int64s
from heterps.data.source import Passes
from heterps.data.split import Split, kept
from heterps.errors import InvalidInput

_SPREAD = 1e4
"""The largest slot has so many times the ids of the smallest, as in Criteo (published counts: from 3 to 10 million)."""
_HOT_OCTAVES = 9
"""The 511 hottest ids of a slot have weights of full size; behind them it halves with each doubling of the rank."""
_DEVIATION = 1.5
"""Standard deviation of the logit where signal is 1: the best AUC is then about 0.8, as good models reach on Criteo."""
_DENSE_SHARE = 0.3
"""Of the logit's variance, the part of the dense features."""
_BIAS = -1.4
"""Gives about a quarter of clicks, as in Criteo."""
_LAW = 0x6C6177
"""Keeps the keys of rows and weights apart from those of shuffles."""
_MEAN_VALUES = 2
"""Ids in a bag, on average (csrc/data/synthetic.hpp: none to four)."""


@dataclass(frozen=True, kw_only=True)
class Synthetic(Passes):
    """Rows like Criteo's. A row is a pure function of (seed, row number), so any row can be made without the others.

    Dense features are nearly normal (mean 0, variance 1). Ids follow Zipf's law by octaves of their rank in the slot:
    rank 0, ranks 1-2, 3-6, 7-14, ... are equally frequent. The label is 1 with probability sigmoid(logit), where the
    logit is a constant plus a weighted sum of the dense features plus a weight of each id, so a logistic regression on
    these features is the best possible model. Hot ids have large weights, so that most is learnable soon.
    """

    name: ClassVar[str] = "synthetic"
    rows: int = 200_000
    ids: int = 1_000_000
    """Different ids of all slots together; slots have from few to many of them."""
    slots: int = 26
    """Single-valued slots: the columns of `ids`."""
    dense: int = 13
    seed: int = 0
    """Of the rows and of the law behind them; the order of reading has its own."""
    signal: float = 1.0
    """How far features tell the label: 0 not at all, 1 about as in Criteo."""
    multi: Sequence[str] = ()
    """Names of multi-valued slots of none to four ids."""
    id_space: Literal["hashed", "dense"] = "hashed"
    """`hashed`: any int64; `dense`: 0 to ids - 1, each slot in its own stretch, fit for a plain embedding."""
    in_memory: bool = False
    """Make all rows at first use and serve them from memory (8 bytes an id, 4 a dense feature)."""
    max_bad_rows: int = field(default=0, init=False, repr=False)
    splits: tuple[Split, ...] = field(default=(), repr=False)
    memory: _Memory = field(default_factory=lambda: _Memory(), repr=False, compare=False)
    """Shared by the sides of a split."""

    def __post_init__(self) -> None:
        for option, least in {"rows": 0, "slots": 0, "dense": 0}.items():
            check_whole(option, getattr(self, option), least=least)
        if isinstance(self.multi, str) or not all(isinstance(name, str) for name in self.multi):
            raise InvalidInput(f"data: multi is a list of names, not {self.multi!r}")
        if len(set(self.multi)) < len(self.multi) or {"dense", "ids", "label"}.intersection(self.multi):
            raise InvalidInput(f"data: multi names differ from each other and from dense, ids, label: {self.multi!r}")
        check_whole("ids", self.ids, least=self.slots + len(self.multi))
        check_whole("seed", self.seed, least=-(2**63))
        check_choice("id_space", self.id_space, ("hashed", "dense"))
        if not isinstance(self.signal, int | float) or not 0 <= self.signal < math.inf:
            raise InvalidInput(f"data: signal is a number of at least 0, not {self.signal!r}")

    @property
    def columns(self) -> tuple[str, ...]:
        """What a batch holds."""
        return (*(["dense"] if self.dense else []), *(["ids"] if self.slots else []), *self.multi, "label")

    def best_auc(self, sample_rows: int = 200_000) -> float:
        """The AUC of the true probabilities, which no model beats but by luck, on the first rows."""
        label, _, _, _, probability = self.law.make(np.arange(sample_rows))
        clicks = int(label.sum())
        others = len(label) - clicks
        if not clicks or not others:
            raise InvalidInput("data: an AUC needs clicks and others in the sample; take a larger one")
        _, place, same = np.unique(probability, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(same) - (same - 1) / 2)[place]  # from 1; equal probabilities share their mean rank
        return float((ranks[label == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * others))

    def make(self, numbers: Int64s) -> Columns:
        """The rows of these numbers."""
        label, dense, ids, bags, _ = self.law.make(numbers)
        return rows.columns_of(label, dense, ids, dict(zip(self.multi, bags, strict=True)))

    def make_pass(
        self, *, batch_size: int, seed: int, shuffle: bool, shard: tuple[int, int], columns: Collection[str]
    ) -> SyntheticPass:
        """One reader's way through the rows."""
        return SyntheticPass(self, batch_size=batch_size, seed=seed, shuffle=shuffle, shard=shard, columns=columns)

    @property
    def slot_sizes(self) -> list[int]:
        """Ids of each slot, single-valued ones first: from small to large in a geometric row, `ids` in all."""
        slots = self.slots + len(self.multi)
        shares = _SPREAD ** (np.arange(slots) / max(slots - 1, 1))
        ends = np.cumsum(shares) / shares.sum() * (self.ids - slots) if slots else shares
        return [int(size) + 1 for size in np.diff(np.floor(ends + 1e-6), prepend=0)]

    @cached_property
    def law(self) -> _native.SyntheticLaw:
        """How rows come about."""
        names = [*(f"C{i + 1}" for i in range(self.slots)), *self.multi]
        sizes = self.slot_sizes
        fading = [min(1.0, 2.0 ** (_HOT_OCTAVES - 1 - octave)) for octave in range(48)]
        variances = [_variance(size, fading) for size in sizes[: self.slots]]
        variances += [_MEAN_VALUES * _variance(size, fading) for size in sizes[self.slots :]]
        dense_share = (_DENSE_SHARE if sizes else 1.0) if self.dense else 0.0
        scale = self.signal * _DEVIATION * math.sqrt((1 - dense_share) / (sum(variances) or 1.0))
        amplitude = [scale * fade for fade in fading]
        bases = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        slots = [
            (size, int(base), slot_key(name), amplitude) for size, base, name in zip(sizes, bases, names, strict=False)
        ]
        weights = np.array([key_of(_LAW, self.seed, at) / 2**63 - 1 for at in range(self.dense)])
        weights *= self.signal * _DEVIATION * math.sqrt(dense_share) / (np.linalg.norm(weights) or 1.0)
        return _native.SyntheticLaw(
            key=key_of(_LAW, self.seed),
            dense=weights.tolist(),
            slots=slots[: self.slots],
            bags=slots[self.slots :],
            hashed=self.id_space == "hashed",
            bias=_BIAS,
        )


def _variance(size: int, fading: list[float]) -> float:
    """Of the weight of a slot's id, before scaling: weights are uniform in ±fading, each octave equally frequent."""
    octaves = math.log2(size + 1)
    return sum(fade**2 * min(max(octaves - octave, 0), 1) for octave, fade in enumerate(fading)) / octaves / 3


class _Memory:
    """All rows of a source, made once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: Columns | None = None

    def all_rows(self, source: Synthetic) -> Columns:
        with self._lock:
            if self._columns is None:
                self._columns = source.make(np.arange(source.rows))
            return self._columns


class SyntheticPass(Pass):
    """Row numbers in the order of a permutation that needs no memory; shard i of n takes every n-th from i on."""

    def __init__(
        self,
        source: Synthetic,
        *,
        batch_size: int,
        seed: int,
        shuffle: bool,
        shard: tuple[int, int],
        columns: Collection[str],
    ) -> None:
        self._source, self._shard, self._seed, self._shuffle = source, shard, seed, shuffle
        self._columns = columns
        self.fingerprint = fingerprint(source, (), seed=seed, shuffle=shuffle, shard=shard)
        share = math.prod(split.share for split in source.splits)
        self._chunk = max(1, min(math.ceil(batch_size / max(share, 0.01)), 1 << 20))
        self._total = max(0, -(-(source.rows - shard[0]) // shard[1]))

    def sections(self, epoch: int, place: Place) -> Iterator[Place]:
        """See `Pass.sections`. Places: (how many rows of the shard stand before,)."""
        return ((at,) for at in range(place[0] if place else 0, self._total, self._chunk))

    def decode(self, epoch: int, places: Iterable[Place]) -> Generator[Part]:
        """See `Pass.decode`."""
        source, (first, step) = self._source, self._shard
        for (at,) in places:
            count = min(self._chunk, self._total - at)
            numbers = self._numbers(epoch, first + at * step, count)
            keep = kept(source.splits, numbers.astype(np.uint64)) if source.splits else None
            if keep is not None:
                numbers = numbers[keep]
            yield Part((at,), (at + count,), self._rows(numbers), None)

    def _numbers(self, epoch: int, begin: int, count: int) -> NDArray[np.int64]:
        step = self._shard[1]
        if not self._shuffle:
            return np.arange(begin, begin + count * step, step)
        return _native.permutation(self._source.rows, key_of(self._seed, epoch), begin, step, count)

    def _rows(self, numbers: Int64s) -> Columns:
        if not self._source.in_memory:
            return rows.some(self._source.make(numbers), self._columns)
        there = rows.some(self._source.memory.all_rows(self._source), self._columns)
        chosen: Any = numbers
        if not self._shuffle and not self._source.splits and self._shard[1] == 1:
            chosen = slice(int(numbers[0]), int(numbers[-1]) + 1)
        return rows.take(there, chosen)
