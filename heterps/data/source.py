"""What every source of batches offers, and the part of it that all of ours share."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from typing import Protocol, Self

from heterps.data.reader import PartReader, Pass, Position, Reader, Way
from heterps.data.split import Split
from heterps.errors import InvalidInput


class Source(Protocol):
    """Where batches come from."""

    @property
    def name(self) -> str:
        """Its kind, as in a job's `data: {source: ...}`."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """What a batch holds."""
        ...

    def reader(
        self,
        *,
        batch_size: int,
        epochs: int | None = 1,
        seed: int = 0,
        shuffle: bool = True,
        shard: tuple[int, int] = (0, 1),
        position: Position | None = None,
        drop_last: bool = False,
    ) -> Reader:
        """Batches of `epochs` passes (None: without end), each shuffled another way by `seed`.

        Shard (i, n) is one of n disjoint parts; all n together have every row once an epoch. `position` is one that
        came with a batch: reading goes on behind it (the batch size may be another one). `drop_last` leaves out the
        last batch of an epoch if it is short.
        """
        ...

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Source, Source]:
        """Training and held-out rows: about `fraction` of all are held out, always the same ones."""
        ...


class Passes(ABC):
    """`reader` and `split` of our own sources, which are frozen dataclasses and say how a pass goes."""

    splits: tuple[Split, ...]
    max_bad_rows: int

    @property
    @abstractmethod
    def columns(self) -> tuple[str, ...]:
        """What a batch holds."""

    @abstractmethod
    def make_pass(
        self, *, batch_size: int, seed: int, shuffle: bool, shard: tuple[int, int], columns: Collection[str]
    ) -> Pass:
        """One reader's way through the source; parts hold these columns."""

    def reader(
        self,
        *,
        batch_size: int,
        epochs: int | None = 1,
        seed: int = 0,
        shuffle: bool = True,
        shard: tuple[int, int] = (0, 1),
        position: Position | None = None,
        drop_last: bool = False,
        columns: Collection[str] | None = None,
        through: Callable[[Pass], Way] | None = None,
    ) -> Reader:
        """See `Source.reader`.

        With some `columns` alone, rows and positions are the same: what can make a row malformed is read all the same,
        and only the rest is left out. `through` makes the pass one that is shared with others.
        """
        if not 0 <= shard[0] < shard[1]:
            raise InvalidInput(f"shard (i, n) has 0 <= i < n, not {shard}")
        chosen = self.columns if columns is None else tuple(name for name in self.columns if name in columns)
        if self.columns and not chosen:
            raise InvalidInput(f"columns: at least one of {', '.join(self.columns)}")
        way = self.make_pass(batch_size=batch_size, seed=seed, shuffle=shuffle, shard=shard, columns=chosen)
        return PartReader(
            way if through is None else through(way),
            batch_size=batch_size,
            epochs=epochs,
            drop_last=drop_last,
            max_bad_rows=self.max_bad_rows,
            position=position,
        )

    def split(self, fraction: float, *, seed: int = 0) -> tuple[Self, Self]:
        """See `Source.split`."""
        sides = [(*self.splits, Split(fraction, seed, held_out)) for held_out in (False, True)]
        training, held_out = (dataclasses.replace(self, splits=side) for side in sides)  # type: ignore[type-var]
        return training, held_out
