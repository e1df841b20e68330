"""Parquet files with declared columns."""

from __future__ import annotations

from collections.abc import Generator
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
from heterps.data.reader import Part, Place
from heterps.data.rows import Columns
from heterps.data.spans import Run, one_pass

_DECODED_ROWS = 1 << 14
"""Rows decoded at a time; small enough for caches. Assumed."""

_MOST_OPEN = 16


@dataclass(frozen=True)
class Parquet(TableSource):
    """Parquet files: `sparse` columns of strings, bytes or whole numbers, `multi` columns of lists of them.

    A missing or NaN dense value reads as `missing`. A row without a label, or with a label or dense value that is not
    finite, is malformed.
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
        """Of all files, with their rows as stretches; read from the files' ends, once."""
        runs = []
        for number, file in enumerate(self.files):
            with reading(file.path), file.open_raw() as stream, pq.ParquetFile(stream) as parquet:
                self.check_columns(parquet.schema_arrow.names, file.path)
                arrow.check_types(parquet.schema_arrow, self, file.path)
                metadata = parquet.metadata
                runs += [Run(number, g, 0, metadata.row_group(g).num_rows) for g in range(metadata.num_row_groups)]
        return runs

    def make_pass(self, *, batch_size: int, seed: int, shuffle: bool, shard: tuple[int, int]) -> ParquetPass:
        """One reader's way through the row groups."""
        return ParquetPass(self, seed=seed, shuffle=shuffle, shard=shard)

    def decode(self, batch: Any) -> tuple[Columns, NDArray[np.bool_]]:
        """Columns of a record batch, and which of its rows are sound."""
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
        ids = np.empty((size, len(self.sparse)), dtype=np.int64)
        for at, name in enumerate(self.sparse):
            arrow.ids(batch.column(name), name, hashed=self.hash, out=ids[:, at])
        bags = {name: arrow.bags(batch.column(name), name, hashed=self.hash) for name in self.multi}
        label = None
        if self.label is not None:
            exact = arrow.numbers(batch.column(self.label))
            sound &= np.isfinite(exact)
            label = exact.astype(np.float32)
        return rows.columns_of(label, dense, ids, bags), sound


class ParquetPass:
    """Row groups in random order; shards cut through them, so a row group on a boundary is read by both sides."""

    def __init__(self, source: Parquet, *, seed: int, shuffle: bool, shard: tuple[int, int]) -> None:
        self._source, self._shard = source, shard
        self._seed, self._shuffle = seed, shuffle
        self.fingerprint = fingerprint(source, source.files, seed=seed, shuffle=shuffle, shard=shard)
        self._first: list[int] = []  # for each row group the row number of its first row in its file
        for before, run in zip([None, *source.row_groups], source.row_groups, strict=False):
            same = before is not None and before.file == run.file
            self._first.append(self._first[-1] + before.end if same and before is not None else 0)
        self._number = {(run.file, run.group): number for number, run in enumerate(source.row_groups)}

    def parts(self, epoch: int, place: Place) -> Generator[Part]:
        """See `Pass.parts`. Places: (part,)."""
        source, key = self._source, key_of(self._seed, epoch) if self._shuffle else None
        runs, most = source.row_groups, source.shuffle_rows
        plan = one_pass(runs, key=key, shard=self._shard, most=most, together=most if key is not None else 1)
        scan = _Scan(source)
        try:
            for number in range(place[0] if place else 0, len(plan)):
                yield self._part(number, plan[number], scan, None if key is None else key_of(key, number))
        finally:
            scan.close()

    def _part(self, number: int, runs: list[Run], scan: _Scan, key: int | None) -> Part:
        decoded = [one for run in runs for one in self._decode(scan, run)]
        keys = np.concatenate([keys for _, keys, _ in decoded])
        sound = np.concatenate([sound for _, _, sound in decoded])
        columns = rows.join([columns for columns, _, _ in decoded])
        order = order_of(keys[sound], splits=self._source.splits, key=key)
        bad = []
        if not sound.all():
            order = np.flatnonzero(sound) if order is None else np.flatnonzero(sound)[order]
            bad = [self._describe(runs, int(at)) for at in np.flatnonzero(~sound)]
        return Part((number,), (number + 1,), columns, order, bad)

    def _decode(self, scan: _Scan, run: Run) -> Generator[tuple[Columns, Any, Any]]:
        file, at = self._source.files[run.file], self._first_row(run)
        for batch in scan.rows(run):
            with reading(file.path):
                columns, sound = self._source.decode(batch)
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


def _says(file: File, row: int) -> str:
    return f"{file.path}, row {row}: the label is missing, or a number is not finite"


class _Scan:
    """Rows of row groups. A stretch that follows the last one goes on where that ended."""

    def __init__(self, source: Parquet) -> None:
        self._source = source
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
            batch_size=_DECODED_ROWS, row_groups=[run.group], columns=self._source.declared, use_threads=False
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
