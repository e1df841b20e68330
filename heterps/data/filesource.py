"""What sources of files share: their options, and the fingerprint of a reader's options."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from heterps import _native
from heterps.data.files import File, find_files
from heterps.data.rows import Int64s
from heterps.data.source import Passes
from heterps.data.split import Split, kept
from heterps.errors import InvalidInput, did_you_mean

Transform = Literal["none", "log"]

_NO_MATTER = ("path", "storage", "max_bad_rows", "in_memory", "memory")
"""Options that may differ between the reader that gave a position and the one that takes it."""


@dataclass(frozen=True)
class FileSource(Passes):
    """Options of every source of files."""

    path: str | Sequence[str]
    """A path, a glob, a directory or a list of them, local or any URL that fsspec knows."""
    _: KW_ONLY
    missing: float = 0.0
    """Stands for a dense value that is missing; it is not transformed. A missing id is that of the empty string."""
    transform: Transform = "none"
    """Of dense values: `log` for log1p(max(x, 0)), or none."""
    max_bad_rows: int = 0
    """So many malformed rows a reader counts and leaves out in an epoch; one more is an error that names its place."""
    storage: Mapping[str, Any] = field(default_factory=dict)
    """Options of the file system (fsspec's storage options)."""
    splits: tuple[Split, ...] = field(default=(), repr=False)
    """Made by `split`."""

    def __post_init__(self) -> None:
        check_choice("transform", self.transform, ("none", "log"))
        check_whole("max_bad_rows", self.max_bad_rows, least=0)
        if not isinstance(self.missing, int | float) or not math.isfinite(self.missing):
            raise InvalidInput(f"data: missing is a number, not {self.missing!r}")

    @cached_property
    def files(self) -> list[File]:
        """The files that are there, looked up once."""
        return find_files(self.path, storage=self.storage)


@dataclass(frozen=True)
class TableSource(FileSource):
    """Options of every source with named columns."""

    _: KW_ONLY
    label: str | None = None
    """The column of labels: finite numbers. None: batches have no label."""
    dense: Sequence[str] = ()
    """Columns of numbers, in the order in which `dense` has them."""
    sparse: Sequence[str] = ()
    """Columns of one id, in the order in which `ids` has them."""
    multi: Sequence[str] = ()
    """Columns of any number of ids; each becomes `Bags` under its own name."""
    hash: bool = True
    """False: ids are whole numbers and are kept as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for option in ("dense", "sparse", "multi"):
            names = getattr(self, option)
            if isinstance(names, str) or not all(isinstance(name, str) for name in names):
                raise InvalidInput(f"data: {option} is a list of columns, not {names!r}")
        declared = self.declared
        if not declared:
            raise InvalidInput("data: name the columns to read: label, dense, sparse, multi")
        if twice := {name for name in declared if declared.count(name) > 1}:
            raise InvalidInput(f"data: columns declared twice: {', '.join(sorted(twice))}")
        if taken := {"dense", "ids", "label"}.intersection(self.multi):
            raise InvalidInput(f"data: a multi-valued column needs another name than {', '.join(sorted(taken))}")

    @property
    def declared(self) -> list[str]:
        """All columns that are read."""
        return [*([self.label] if self.label is not None else []), *self.dense, *self.sparse, *self.multi]

    @property
    def columns(self) -> tuple[str, ...]:
        """What a batch holds."""
        there = {"dense": self.dense, "ids": self.sparse}
        return (
            *(name for name, declared in there.items() if declared),
            *self.multi,
            *(["label"] if self.label is not None else []),
        )

    def check_columns(self, there: Sequence[str], path: str) -> None:
        """An `InvalidInput` if a declared column is not there, or there twice."""
        for name in self.declared:
            if name not in there:
                hint = did_you_mean(name, there)
                raise InvalidInput(f"{path} has no column {name!r}.{hint} Its columns: {_some(there)}")
            if there.count(name) > 1:
                raise InvalidInput(f"{path} has {there.count(name)} columns {name!r}; name each column once")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")


def fingerprint(source: Passes, files: Sequence[File], **options: Any) -> str:
    """A few hex digits that differ when rows or their order would."""
    names = [f.name for f in dataclasses.fields(source) if f.name not in _NO_MATTER]  # type: ignore[arg-type]
    values = [(name, getattr(source, name)) for name in sorted(names)]
    plain = [(name, list(value) if isinstance(value, tuple) else value) for name, value in values]
    there = [(file.name, file.size) for file in files]
    text = repr((type(source).__name__, plain, there, sorted(options.items())))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def order_of(
    keys: NDArray[np.uint64], *, splits: Sequence[Split], key: int | None, every: tuple[int, int] = (0, 1)
) -> Int64s | None:
    """Which rows of a part are read and in which order: of those kept by the splits every n-th, shuffled by `key`."""
    keep = kept(splits, keys)
    if keep is None and key is None and every == (0, 1):
        return None
    chosen = np.arange(len(keys)) if keep is None else np.flatnonzero(keep)
    chosen = chosen[every[0] :: every[1]]
    return chosen if key is None else chosen[_native.permutation(len(chosen), key, 0, 1, len(chosen))]


def check_choice(option: str, value: object, choices: Sequence[str]) -> None:
    """An `InvalidInput` unless the value is one of the choices."""
    if value not in choices:
        hint = did_you_mean(str(value), choices)
        raise InvalidInput(f"data: {option} is one of {', '.join(choices)}, not {value!r}.{hint}")


def check_whole(option: str, value: object, *, least: int) -> None:
    """An `InvalidInput` unless the value is a whole number of at least so much."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"data: {option} is a whole number of at least {least}, not {value!r}")
