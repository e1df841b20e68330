"""Parquet files with declared columns."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from heterps.data import arrow, rows
from heterps.data.files import File, reading
from heterps.data.filesource import TableSource, check_whole, fingerprint, order_of
from heterps.data.hashing import key_of
from heterps.data.reader import Part, Pass, Place
from heterps.data.rows import Columns
from heterps.data.spans import Run, one_pass

_DECODED_ROWS = 1 << 14
"""Rows decoded at a time; small enough for caches. Assumed."""

_MOST_OPEN = 16


@dataclass(frozen=True)
class Parquet(TableSource):
    """Parquet files: `sparse` columns of strings, bytes or whole numbers, `multi` columns of lists of them.

    A missing or NaN dense value reads as `missing`. A row without a label, with a label or dense value that is not
    finite, or with an id that `hash: false` cannot keep as int64 is malformed.
    """

    name: ClassVar[str] = "parquet"
    _: KW_ONLY
    shuffle_rows: int = 1 << 17
    """Rows that are shuffled together: row groups in random order, as many as fit, or a stretch of one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("shuffle_rows", self.shuffle_rows, least=1)

    @cached_property
    def row_groups(self) -> list[Run]:
        """Of all files, with their rows as stretches."""
        return [
            Run(number, group, 0, size)
            for number, (_, sizes) in enumerate(self._footers)
            for group, size in enumerate(sizes)
        ]

    @cached_property
    def _footers(self) -> list[tuple[Any, list[int]]]:
        """The schema and the rows of the row groups of each file; read from the files' ends, once."""
        footers = []
        for file in self.files:
            with reading(file.path), file.open_raw() as stream, pq.ParquetFile(stream) as parquet:
                self.check_columns(parquet.schema_arrow.names, file.path)
                arrow.check_types(parquet.schema_arrow, self, file.path)
                groups = map(parquet.metadata.row_group, range(parquet.metadata.num_row_groups))
                footers.append((parquet.schema_arrow, [group.num_rows for group in groups]))
        return footers

    @cached_property
    def _checked_ids(self) -> list[str]:
        """Columns of ids that can make a row malformed."""
        names = [] if self.hash else [*self.sparse, *self.multi]
        kinds = {name: [schema.field(name).type for schema, _ in self._footers] for name in names}
        return [name for name in names if any(map(arrow.may_be_too_large, kinds[name]))]

    def make_pass(
        self, *, batch_size: int, seed: int, shuffle: bool, shard: tuple[int, int], columns: Collection[str]
    ) -> ParquetPass:
        """One reader's way through the row groups."""
        return ParquetPass(self, seed=seed, shuffle=shuffle, shard=shard, columns=columns)

    def needed(self, columns: Collection[str]) -> list[str]:
        """What is read of the files for these columns of batches: always what can make a row malformed."""
        ids = {*(self.sparse if "ids" in columns else ()), *(name for name in self.multi if name in columns)}
        needed = {self.label, *self.dense, *ids, *self._checked_ids}
        return [name for name in self.declared if name in needed]

    def decode(self, batch: Any, columns: Collection[str]) -> tuple[Columns, NDArray[np.bool_]]:
        """These columns of a record batch, and which of its rows are sound."""
        size = batch.num_rows
        sound = np.ones(size, dtype=np.bool_)
        dense = np.empty((size, len(self.dense)), dtype=np.float32)
        for at, name in enumerate(self.dense):
            values = arrow.numbers(batch.column(name))
            sound &= ~np.isinf(values)
            absent = np.isnan(values)
            if self.transform == "log":
                values = np.log1p(np.maximum(values, 0))
            dense[:, at] = np.where(absent, self.missing, values)
        for name in self._checked_ids:
            if arrow.may_be_too_large(batch.column(name).type):  # files may differ
                sound &= ~arrow.too_large(batch.column(name))
        sparse = self.sparse if "ids" in columns else ()
        ids = np.empty((size, len(sparse)), dtype=np.int64)
        for at, name in enumerate(sparse):
            arrow.ids(batch.column(name), name, hashed=self.hash, out=ids[:, at])
        multi = [name for name in self.multi if name in columns]
        bags = {name: arrow.bags(batch.column(name), name, hashed=self.hash) for name in multi}
        label = None
        if self.label is not None:
            exact = arrow.numbers(batch.column(self.label))
            sound &= np.isfinite(exact)
            label = exact.astype(np.float32)
        return rows.some(rows.columns_of(label, dense, ids, bags), columns), sound


class ParquetPass(Pass):
    """Row groups in random order; shards cut through them, so a row group on a boundary is read by both sides.

    The parts of a row group that is larger than what is shuffled together make a section.
    """

    def __init__(
        self, source: Parquet, *, seed: int, shuffle: bool, shard: tuple[int, int], columns: Collection[str]
    ) -> None:
        self._source, self._shard, self._columns = source, shard, columns
        self._seed, self._shuffle = seed, shuffle
        self.fingerprint = fingerprint(source, source.files, seed=seed, shuffle=shuffle, shard=shard)
        self._first: list[int] = []  # for each row group the row number of its first row in its file
        for before, run in zip([None, *source.row_groups], source.row_groups, strict=False):
            same = before is not None and before.file == run.file
            self._first.append(self._first[-1] + before.end if same and before is not None else 0)
        self._number = {(run.file, run.group): number for number, run in enumerate(source.row_groups)}

    def sections(self, epoch: int, place: Place) -> Iterator[Place]:
        """See `Pass.sections`. Places: (part,)."""
        plan, first = self._plan(epoch), place[0] if place else 0
        return ((number,) for number in range(first, len(plan)) if number == first or not _goes_on(plan, number))

    def decode(self, epoch: int, places: Iterable[Place]) -> Generator[Part]:
        """See `Pass.decode`."""
        plan, scan = self._plan(epoch), _Scan(self._source, self._source.needed(self._columns))
        try:
            for (number,) in places:
                last = False
                while not last:
                    last = number + 1 == len(plan) or not _goes_on(plan, number + 1)
                    yield self._part(epoch, number, plan[number], scan, last=last)
                    number += 1
        finally:
            scan.close()

    def _plan(self, epoch: int) -> list[list[Run]]:
        """The stretches of row groups that are read together in an epoch."""
        runs, most = self._source.row_groups, self._source.shuffle_rows
        key = key_of(self._seed, epoch) if self._shuffle else None
        return one_pass(runs, key=key, shard=self._shard, most=most, together=most if self._shuffle else 1)

    def _part(self, epoch: int, number: int, runs: list[Run], scan: _Scan, *, last: bool) -> Part:
        key = key_of(key_of(self._seed, epoch), number) if self._shuffle else None
        decoded = [one for run in runs for one in self._decode(scan, run)]
        keys = np.concatenate([keys for _, keys, _ in decoded])
        sound = np.concatenate([sound for _, _, sound in decoded])
        columns = rows.join([columns for columns, _, _ in decoded])
        order = order_of(keys[sound], splits=self._source.splits, key=key)
        bad = []
        if not sound.all():
            order = np.flatnonzero(sound) if order is None else np.flatnonzero(sound)[order]
            bad = [self._describe(runs, int(at)) for at in np.flatnonzero(~sound)]
        return Part((number,), (number + 1,), columns, order, bad, last)

    def _decode(self, scan: _Scan, run: Run) -> Generator[tuple[Columns, Any, Any]]:
        file, at = self._source.files[run.file], self._first_row(run)
        for batch in scan.rows(run):
            with reading(file.path):
                columns, sound = self._source.decode(batch, self._columns)
            keys = np.arange(at, at + len(sound), dtype=np.uint64) + np.uint64(file.key)
            at += len(sound)
            yield columns, keys, sound

    def _first_row(self, run: Run) -> int:
        return self._first[self._number[run.file, run.group]] + run.begin

    def _describe(self, part: list[Run], at: int) -> partial[str]:
        for run in part:
            if at < run.size:
                return partial(_says, self._source.files[run.file], self._first_row(run) + at + 1)
            at -= run.size
        raise AssertionError("a row of another part")


def _goes_on(plan: list[list[Run]], number: int) -> bool:
    """Whether a part begins within a row group, where the part before it ended."""
    before, first = plan[number - 1][-1], plan[number][0]
    return (before.file, before.group, before.end) == (first.file, first.group, first.begin)


def _says(file: File, row: int) -> str:
    return (
        f"{file.path}, row {row}: the label is missing, a number is not finite, or an id is above 2^63 - 1, which "
        "hash: false cannot keep"
    )


class _Scan:
    """Rows of row groups. A stretch that follows the last one goes on where that ended."""

    def __init__(self, source: Parquet, columns: list[str]) -> None:
        self._source, self._columns = source, columns
        self._where: tuple[int, int, int] | None = None
        self._opened: dict[int, tuple[Any, Any]] = {}
        self._batches: Any = None
        self._left: Any = None

    def rows(self, run: Run) -> Generator[Any]:
        """Record batches that hold the rows of this stretch."""
        with reading(self._source.files[run.file].path):
            if self._where != (run.file, run.group, run.begin):
                self._start(run)
            self._where = None  # until it is read to its end
            yield from self._take(run.size)
        self._where = (run.file, run.group, run.end)

    def _start(self, run: Run) -> None:
        self._batches = self._open(run.file).iter_batches(
            batch_size=_DECODED_ROWS, row_groups=[run.group], columns=self._columns, use_threads=False
        )
        self._left = None
        for _ in self._take(run.begin):
            pass

    def _open(self, file: int) -> Any:
        if file not in self._opened:
            if len(self._opened) >= _MOST_OPEN:
                self._close(next(iter(self._opened)))
            stream = self._source.files[file].open_raw()
            self._opened[file] = (pq.ParquetFile(stream), stream)
        return self._opened[file][0]

    def _take(self, count: int) -> Generator[Any]:
        while count > 0:
            batch = self._left if self._left is not None else next(self._batches, None)
            if batch is None:
                raise EOFError("a row group ends before its rows do")
            self._left = batch.slice(count) if batch.num_rows > count else None
            yield batch.slice(0, count)
            count -= min(count, batch.num_rows)

    def _close(self, file: int) -> None:
        for opened in self._opened.pop(file):
            opened.close()

    def close(self) -> None:
        for file in list(self._opened):
            self._close(file)
