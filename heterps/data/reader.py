"""Readers: batches of a source, each with the position behind it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeAlias

from heterps.data import rows
from heterps.data.ahead import Ahead
from heterps.data.rows import Columns, Int64s
from heterps.errors import HeterPSError, InvalidInput
from heterps.models import Batch

Position: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[int, ...]
"""Where a part stands in a pass; () is the beginning. What the numbers mean is the source's business."""


class MalformedRow(HeterPSError):
    """A row that cannot be read, beyond those that may be left out."""


@dataclass(frozen=True, slots=True)
class Read:
    """A batch and the point behind it: a reader made with `position` gives exactly the batches that follow."""

    batch: Batch
    """Its tensors may be views of what the source holds: do not write to them."""
    position: Position
    """Plain numbers and strings, fit for JSON."""


class Reader(ABC):
    """An iterator of `Read`s, for one consumer. Close it, or use it in a `with` statement."""

    @property
    @abstractmethod
    def skipped(self) -> int:
        """Malformed rows left out so far, over all epochs."""

    @abstractmethod
    def __next__(self) -> Read: ...

    @abstractmethod
    def close(self) -> None:
        """Lets go of files and threads. Closing twice is fine."""

    def __iter__(self) -> Iterator[Read]:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Part:
    """Rows that are decoded together: what a shuffle mixes, and what is read again when resuming within it."""

    place: Place
    after: Place
    columns: Columns
    order: Int64s | None
    """The rows to give, in this order; None: all of them as they lie."""
    bad: Sequence[Callable[[], str]] = ()
    """For each malformed row, what says where and why."""
    last: bool = True
    """Whether its section ends with it."""

    def __len__(self) -> int:
        if self.order is not None:
            return len(self.order)
        return rows.count(self.columns)

    def take(self, start: int, stop: int) -> Columns:
        """Rows in the order of reading."""
        chosen = slice(start, stop) if self.order is None else self.order[start:stop]
        return rows.take(self.columns, chosen)


class Way(Protocol):
    """Where a reader has its parts from."""

    @property
    def fingerprint(self) -> str:
        """Differs when a position would mean something else."""
        ...

    def parts(self, epoch: int, place: Place) -> Generator[Part]:
        """The parts of an epoch from a place on."""
        ...

    def stop(self, error: Exception | None = None) -> None:
        """No more parts are needed, as of an error in those that came: nobody waits for others from now on."""
        ...


class Pass(ABC):
    """One reader's way through its source: which parts an epoch has, for this shard, seed and split.

    Parts that can be decoded only one after the other, as those of a compressed file, make a section; where sections
    begin is known without reading data. Most parts are a section of their own.
    """

    fingerprint: str

    @abstractmethod
    def sections(self, epoch: int, place: Place) -> Iterator[Place]:
        """Where the sections of an epoch begin, from a place on; the first one begins there, maybe within one."""

    @abstractmethod
    def decode(self, epoch: int, places: Iterable[Place]) -> Generator[Part]:
        """The parts of the sections at these places, each from there to its end."""

    def parts(self, epoch: int, place: Place) -> Generator[Part]:
        """See `Way.parts`."""
        return self.decode(epoch, self.sections(epoch, place))

    def stop(self, error: Exception | None = None) -> None:  # noqa: B027
        """See `Way.stop`; a pass waits for nobody."""


class PartReader(Reader):
    """Cuts the parts of a pass into batches. A batch never crosses the end of an epoch."""

    def __init__(
        self,
        way: Way,
        *,
        batch_size: int,
        epochs: int | None,
        drop_last: bool,
        max_bad_rows: int,
        position: Position | None,
    ) -> None:
        if batch_size < 1 or (epochs is not None and epochs < 0):
            raise InvalidInput(f"batch_size is at least 1 and epochs at least 0, not {batch_size} and {epochs}")
        self._way, self._size, self._epochs = way, batch_size, epochs
        self._drop_last, self._limit = drop_last, max_bad_rows
        self._ahead = 0
        self._start = _checked(position, way.fingerprint)
        self._skipped, self._bad = self._start["skipped"], self._start["bad"]
        self._reads = self._make_reads()

    @property
    def skipped(self) -> int:
        """See `Reader.skipped`."""
        return int(self._skipped)

    def read_ahead(self) -> None:
        """From now on the next part is decoded while this one is given out; holds one part more in memory."""
        self._ahead = 1

    def stop(self) -> None:
        """What is being read is not needed any more; call `close` then."""
        self._way.stop()

    def __next__(self) -> Read:
        return next(self._reads)

    def close(self) -> None:
        """See `Reader.close`."""
        self._reads.close()

    def _make_reads(self) -> Generator[Read]:
        epoch, place, row = self._start["epoch"], tuple(self._start["place"]), self._start["row"]
        while self._epochs is None or epoch < self._epochs:
            whole, gave = place == (), False
            for read in self._epoch(epoch, place, row):
                gave = True
                yield read
            if whole and not gave and self._epochs is None:
                few = f"less than one batch of {self._size} rows" if self._drop_last else "no rows"
                raise HeterPSError(f"data: an epoch has {few} for this reader, so it cannot be read without end")
            epoch, place, row, self._bad = epoch + 1, (), 0, 0

    def _epoch(self, epoch: int, place: Place, row: int) -> Generator[Read]:
        pieces: list[Columns] = []
        held, position = 0, {}
        parts: Any = self._way.parts(epoch, place)
        if self._ahead:
            parts = Ahead(parts, depth=self._ahead, stop=self._way.stop)
        with closing(parts):
            for part in parts:
                before = {"skipped": self._skipped, "bad": self._bad}
                self._count(part)
                after = {"skipped": self._skipped, "bad": self._bad}
                at = min(row, len(part))  # parts may be cut smaller than when the position was taken
                row -= at
                while at < len(part):
                    stop = min(at + self._size - held, len(part))
                    pieces.append(part.take(at, stop))
                    held, at = held + stop - at, stop
                    done = at == len(part)
                    where = part.after if done else part.place
                    position = {"epoch": epoch, "place": list(where), "row": 0 if done else at}
                    position |= {**(after if done else before), "reader": self._way.fingerprint}
                    if held == self._size:
                        yield Read(rows.to_batch(rows.join(pieces)), position)
                        pieces, held = [], 0
        if held and not self._drop_last:
            yield Read(rows.to_batch(rows.join(pieces)), position)

    def _count(self, part: Part) -> None:
        if self._bad + len(part.bad) > self._limit:
            says = part.bad[self._limit - self._bad]()
            rule = f"more than max_bad_rows={self._limit} malformed rows" if self._limit else "a malformed row"
            error = MalformedRow(f"{says} ({rule}; mend it or raise max_bad_rows)")
            self._way.stop(error)
            raise error
        self._bad += len(part.bad)
        self._skipped += len(part.bad)


def _checked(position: Position | None, fingerprint: str) -> Position:
    start = {"epoch": 0, "place": [], "row": 0, "skipped": 0, "bad": 0, "reader": fingerprint}
    if position is None:
        return start
    if set(position) != set(start):
        raise InvalidInput(f"not the position of a reader: {position!r}; use the one that came with a batch")
    if position["reader"] != fingerprint:
        raise InvalidInput(
            "the position belongs to a reader of other data or options; resume with the same files, columns, split, "
            "seed, shuffle and shard"
        )
    return position
