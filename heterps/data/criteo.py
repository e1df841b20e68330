"""The Criteo click logs: label, 13 counts and 26 categories a line, separated by tabs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass
from typing import ClassVar

from heterps import _native
from heterps.data.files import File
from heterps.data.filesource import Transform
from heterps.data.hashing import slot_key
from heterps.data.text import Kind, Layout, TextSource

DENSE = tuple(f"I{i}" for i in range(1, 14))
SPARSE = tuple(f"C{i}" for i in range(1, 27))


@dataclass(frozen=True)
class Criteo(TextSource):
    """Files as in the Criteo Kaggle and Terabyte datasets, plain or compressed (.gz and others, by their ending).

    A line has 40 fields: the label (0 or 1), I1 to I13 (whole numbers) and C1 to C26 (strings; slots of these names).
    All but the label may be empty. Empty lines are no rows.
    """

    name: ClassVar[str] = "criteo"
    columns: ClassVar[tuple[str, ...]] = ("dense", "ids", "label")
    _: KW_ONLY
    transform: Transform = "log"

    def layout(self, file: File, columns: Collection[str]) -> Layout:
        """The same for every file."""
        kind = Kind.ID if "ids" in columns else Kind.SKIP
        fields = [
            (Kind.CLICK, 0, 0),
            *((Kind.INTEGER, column, 0) for column in range(len(DENSE))),
            *((kind, column, slot_key(name)) for column, name in enumerate(SPARSE)),
        ]
        text_format = _native.TextFormat(
            fields=[(int(kind), column, key) for kind, column, key in fields],
            separator="\t",
            inner="|",
            quotes=False,
            log=self.transform == "log",
            missing=self.missing,
        )
        return Layout(text_format, ("label", *DENSE, *SPARSE), "\t", clicks=True)
