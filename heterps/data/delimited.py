"""CSV files with declared columns."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from heterps import _native
from heterps.data.files import File, reading
from heterps.data.filesource import TableSource
from heterps.data.hashing import slot_key
from heterps.data.lines import ForwardBytes, read_lines
from heterps.data.text import Kind, Layout, TextSource
from heterps.errors import InvalidInput


@dataclass(frozen=True)
class Csv(TextSource, TableSource):
    """CSV files: a row in each line, plain or compressed.

    A field may stand in double quotes, with quotes inside doubled, but holds no newline. Numbers may be empty
    (missing). The first line names the columns, unless `column_names` does. Empty lines are no rows.
    """

    name: ClassVar[str] = "csv"
    _: KW_ONLY
    separator: str = ","
    """Between fields: one ASCII character."""
    multi_separator: str = "|"
    """Between the ids of a field of a multi-valued column. Empty ids do not count; an empty field is an empty bag."""
    quotes: bool = True
    """False: double quotes are characters like any other."""
    column_names: Sequence[str] | None = None
    """Names of all fields, for files without a header line."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("separator", "multi_separator"):
            value = getattr(self, option)
            if not isinstance(value, str) or len(value) != 1 or not value.isascii() or value in '"\r\n':
                raise InvalidInput(f"data: {option} is one ASCII character and no quote or newline, not {value!r}")
        if self.separator == self.multi_separator:
            raise InvalidInput("data: separator and multi_separator differ")
        if self.column_names is not None:
            self.check_columns(self.column_names, "column_names")

    def layout(self, file: File, columns: Collection[str]) -> Layout:
        """By the file's own header, so that files may order their columns differently."""
        names, begin = (self.column_names, 0) if self.column_names is not None else self._header(file)
        if begin or self.column_names is not None:
            self.check_columns(names, file.path)
        bags = [name for name in self.multi if name in columns or not self.hash]
        text_format = _native.TextFormat(
            fields=[self._field(name, bags, ids=not self.hash or "ids" in columns) for name in names],
            separator=self.separator,
            inner=self.multi_separator,
            quotes=self.quotes,
            log=self.transform == "log",
            missing=self.missing,
        )
        labelled = self.label is not None
        return Layout(text_format, names, self.separator, bags, labelled, begin=begin)

    def _header(self, file: File) -> tuple[list[str], int]:
        data = ForwardBytes(file)
        try:
            with reading(file.path):
                line = read_lines(data, 0, 1).text
        finally:
            data.close()
        try:
            text = line.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{file.path}, line 1: the header is not UTF-8: {error}") from None
        if not self.quotes:
            return (text.split(self.separator) if text else []), len(line)
        return next(csv.reader([text], delimiter=self.separator), []), len(line)

    def _field(self, name: str, bags: list[str], *, ids: bool) -> tuple[int, int, int]:
        """What a field becomes. Whole numbers are read even if they are not wanted: others make a row malformed."""
        if name == self.label:
            return int(Kind.LABEL), 0, 0
        if name in self.dense:
            return int(Kind.NUMBER), list(self.dense).index(name), 0
        if name in self.sparse and ids:
            return int(Kind.ID if self.hash else Kind.RAW_ID), list(self.sparse).index(name), slot_key(name)
        if name in bags:
            return int(Kind.BAG if self.hash else Kind.RAW_BAG), bags.index(name), slot_key(name)
        return int(Kind.SKIP), 0, 0
