"""Text files with a row in each line: how one reader goes through them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from enum import IntEnum
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from heterps import _native
from heterps.data import rows
from heterps.data.files import File, reading
from heterps.data.filesource import FileSource, check_whole, fingerprint, order_of
from heterps.data.hashing import key_of
from heterps.data.lines import Bytes, ForwardBytes, SeekableBytes, line_number, read_lines
from heterps.data.reader import Part, Pass, Place
from heterps.data.rows import Columns
from heterps.data.spans import Run, one_pass

_BLOCKS = 8
"""Stretches from different places that are shuffled together. Assumed: enough to mix, few enough to read fast."""

_MOST_OPEN = 16

_Decoded: TypeAlias = tuple[Columns, NDArray[np.uint64], list[Callable[[], str]]]
"""Columns of rows, their keys, and what says where and why rows are malformed."""


class Kind(IntEnum):
    """What a field becomes; the numbers are those of csrc/data/text.hpp."""

    SKIP, CLICK, LABEL, INTEGER, NUMBER, ID, RAW_ID, BAG, RAW_BAG = range(9)


_FAULTS = (
    "has {found} fields, not {wanted}",
    "column {name!r} (the label) is not {rule}: {value!r}",
    "{name} is not a whole number: {value!r}",
    "{name} is not a finite number: {value!r}",
    "{name} is not a whole number, as hash: false asks for: {value!r}",
    "{name}: a quote that does not end, or something behind it: {value!r}",
)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the fields of a file become columns."""

    format: _native.TextFormat
    names: Sequence[str]
    """Of the fields, for messages."""
    separator: str
    multi: Sequence[str] = ()
    labelled: bool = True
    clicks: bool = False
    """Labels are 0 or 1."""
    begin: int = 0
    """Bytes of the header."""

    def parse(self, text: bytes, begin: int) -> tuple[Columns, rows.Int64s, list[tuple[int, int, int]]]:
        """Columns, where their rows start, and what is malformed."""
        label, dense, ids, bags, starts, bad = self.format.parse(text, begin)
        if not len(starts):  # widths are unknown then
            return {}, starts, bad
        named = dict(zip(self.multi, bags, strict=True))
        return rows.columns_of(label if self.labelled else None, dense, ids, named), starts, bad

    def describe(self, file: File, offset: int, line: bytes, field: int, fault: int) -> str:
        """Where and why a row is malformed."""
        fields = line.decode(errors="replace").split(self.separator)
        says = _FAULTS[fault].format(
            found=field,
            wanted=len(self.names),
            name=self.names[field] if field < len(self.names) else f"field {field + 1}",
            value=fields[field][:80] if field < len(fields) else "",
            rule="0 or 1" if self.clicks else "a finite number",
        )
        return f"{file.path}, line {line_number(file, offset)}: {says}"


@dataclass(frozen=True)
class TextSource(FileSource):
    """Options of every source of text files."""

    _: KW_ONLY
    shuffle_bytes: int = 1 << 25
    """Text that is shuffled together: stretches from eight random places of all files (of compressed files: the next so
    many bytes of one). Memory is about four times this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("shuffle_bytes", self.shuffle_bytes, least=1)

    def layout(self, file: File, columns: Collection[str]) -> Layout:
        """How this file is to be read; ids of other columns than these need not be hashed."""
        raise NotImplementedError

    def make_pass(
        self, *, batch_size: int, seed: int, shuffle: bool, shard: tuple[int, int], columns: Collection[str]
    ) -> TextPass:
        """One reader's way through the files."""
        return TextPass(self, seed=seed, shuffle=shuffle, shard=shard, columns=columns)


class TextPass(Pass):
    """Files that can be read anywhere are read by blocks in random order; if one cannot, all are read file by file.

    In the second case a file is a section; a shard gets whole files if there are enough of them, else every n-th row of
    all files.
    """

    def __init__(
        self, source: TextSource, *, seed: int, shuffle: bool, shard: tuple[int, int], columns: Collection[str]
    ) -> None:
        self._source, self._files, self._shard, self._columns = source, source.files, shard, columns
        self._seed, self._shuffle = seed, shuffle
        self.fingerprint = fingerprint(source, self._files, seed=seed, shuffle=shuffle, shard=shard)
        self._layouts = [source.layout(file, columns) for file in self._files]
        self._forward = any(file.compression or file.size is None for file in self._files)
        self._block = max(1, source.shuffle_bytes // _BLOCKS)

    def sections(self, epoch: int, place: Place) -> Iterator[Place]:
        """See `Pass.sections`. Places: (part,) or (file, part)."""
        if not self._forward:
            return ((number,) for number in range(place[0] if place else 0, len(self._plan(epoch))))
        nth, first = place or (0, 0)
        return ((at, first if at == nth else 0) for at in range(nth, len(self._order(epoch)[0])))

    def decode(self, epoch: int, places: Iterable[Place]) -> Generator[Part]:
        """See `Pass.decode`."""
        return self._decode_forward(epoch, places) if self._forward else self._decode_anywhere(epoch, places)

    def _key(self, epoch: int, *place: int) -> int | None:
        return key_of(self._seed, epoch, *place) if self._shuffle else None

    def _plan(self, epoch: int) -> list[list[Run]]:
        """What is read together in an epoch, of files that can be read anywhere."""
        blocks = []
        for number, (file, layout) in enumerate(zip(self._files, self._layouts, strict=True)):
            size = file.size or 0
            for begin in range(layout.begin, size, self._block):
                blocks.append(Run(number, 0, begin, min(begin + self._block, size)))
        together = self._block * _BLOCKS if self._shuffle else self._block
        return one_pass(blocks, key=self._key(epoch), shard=self._shard, most=self._block, together=together)

    def _decode_anywhere(self, epoch: int, places: Iterable[Place]) -> Generator[Part]:
        plan = self._plan(epoch)
        opened: dict[int, SeekableBytes] = {}
        try:
            for (number,) in places:
                key = self._key(epoch, number)
                yield self._part((number,), [self._decode_run(run, opened) for run in plan[number]], key, (0, 1))
        finally:
            for data in opened.values():
                data.close()

    def _decode_run(self, run: Run, opened: dict[int, SeekableBytes]) -> _Decoded:
        if run.file not in opened:
            if len(opened) >= _MOST_OPEN:
                opened.pop(next(iter(opened))).close()
            opened[run.file] = SeekableBytes(self._files[run.file])
        return self._decode(run.file, opened[run.file], run.begin, run.end)[0]

    def _order(self, epoch: int) -> tuple[list[int], tuple[int, int]]:
        """Numbers of the files that an epoch reads one by one, and which rows of them: every n-th from the i-th on."""
        order = list(range(len(self._files)))
        if self._shuffle:
            key = key_of(self._seed, epoch)
            order = [int(i) for i in _native.permutation(len(order), key, 0, 1, len(order))]
        every = self._shard
        if len(order) >= self._shard[1]:
            order, every = order[self._shard[0] :: self._shard[1]], (0, 1)
        return order, every

    def _decode_forward(self, epoch: int, places: Iterable[Place]) -> Generator[Part]:
        order, every = self._order(epoch)
        size = self._source.shuffle_bytes if self._shuffle else self._block
        for at, part in places:
            number, ended = order[at], False
            data = ForwardBytes(self._files[number])
            try:
                while not ended:
                    begin = self._layouts[number].begin + part * size
                    with reading(self._files[number].path):
                        data.forget(max(begin - 1, 0))
                    decoded, ended = self._decode(number, data, begin, begin + size)
                    yield self._part((at, part), [decoded], self._key(epoch, at, part), every, last=ended)
                    part += 1
            finally:
                data.close()

    def _decode(self, number: int, data: Bytes, begin: int, end: int) -> tuple[_Decoded, bool]:
        file, layout = self._files[number], self._layouts[number]
        with reading(file.path):
            lines = read_lines(data, begin, end)
        columns, starts, faults = layout.parse(lines.text, lines.begin)
        keys = starts.astype(np.uint64) + np.uint64((file.key + lines.offset) % 2**64)
        bad: list[Callable[[], str]] = []
        for start, field, fault in faults:
            stop = lines.text.find(b"\n", lines.begin + start)
            line = lines.text[lines.begin + start : stop if stop >= 0 else None]
            bad.append(partial(layout.describe, file, lines.offset + start, line.rstrip(b"\r")[:4096], field, fault))
        return (rows.some(columns, self._columns), keys, bad), lines.ended

    def _part(
        self, place: Place, decoded: list[_Decoded], key: int | None, every: tuple[int, int], *, last: bool = True
    ) -> Part:
        there = [one for one in decoded if len(one[1])] or decoded[:1]
        keys = np.concatenate([keys for _, keys, _ in there])
        return Part(
            place=place,
            after=(*place[:-1], place[-1] + 1),
            columns=rows.join([columns for columns, _, _ in there]),
            order=order_of(keys, splits=self._source.splits, key=key, every=every),
            bad=[row for _, _, bad in decoded for row in bad],
            last=last,
        )
