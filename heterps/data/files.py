"""Files of a source, wherever fsspec finds them, and the errors that name them."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import fsspec
import pyarrow
from fsspec.utils import infer_compression

from heterps.data.hashing import hash_bytes
from heterps.errors import HeterPSError, InvalidInput

_UNREADABLE = (OSError, EOFError, zlib.error, lzma.LZMAError, pyarrow.ArrowException)


@dataclass(frozen=True, slots=True)
class File:
    """One file to read."""

    fs: Any
    path: str
    size: int | None
    """Bytes; None if the file system does not say."""

    @property
    def name(self) -> str:
        """The last part of the path: what stays when a dataset moves."""
        return self.path.rsplit("/", 1)[-1]

    @property
    def key(self) -> int:
        """Tells rows of this file from rows of others when rows are held out."""
        return hash_bytes(1, self.name.encode())

    @property
    def compression(self) -> str | None:
        """By the name's ending: gzip, bz2, xz, ... or None."""
        kind: str | None = infer_compression(self.path)
        return kind

    def open(self) -> Any:
        """The file for reading bytes, decompressed."""
        with reading(self.path):
            return fsspec.core.OpenFile(self.fs, self.path, compression=self.compression).open()

    def open_raw(self) -> Any:
        """The file as it is."""
        with reading(self.path):
            return self.fs.open(self.path, "rb")


@contextmanager
def reading(path: str) -> Generator[None]:
    """Whatever goes wrong with the file inside becomes an error that names it."""
    try:
        yield
    except _UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise HeterPSError(f"{path} cannot be read: {reason}") from error


def find_files(paths: str | Sequence[str], *, storage: Mapping[str, Any]) -> list[File]:
    """The files of paths, globs and directories (all their files but hidden ones), each path's in order of names."""
    given = [paths] if isinstance(paths, str) else list(paths)
    if not given or not all(isinstance(path, str) and path for path in given):
        raise InvalidInput(f"data: path is a path, a glob or a list of them, not {paths!r}")
    return [file for path in given for file in _find(path, storage)]


def _find(path: str, storage: Mapping[str, Any]) -> list[File]:
    try:
        fs, plain = fsspec.core.url_to_fs(path, **storage)
    except (ImportError, ValueError) as error:
        raise InvalidInput(f"data: path {path!r}: {error}") from None
    with reading(path):
        if any(char in plain for char in "*?[") and not fs.exists(plain):
            found = [info for info in fs.glob(plain, detail=True).values() if info["type"] == "file"]
        elif fs.isdir(plain):
            found = [info for info in fs.find(plain, detail=True).values() if _visible(info["name"], plain)]
        else:
            found = [fs.info(plain)] if fs.exists(plain) else []
    if not found:
        raise InvalidInput(f"data: no such file: {path}")
    return [File(fs, info["name"], info.get("size")) for info in sorted(found, key=lambda info: info["name"])]


def _visible(name: str, directory: str) -> bool:
    inside = name[len(directory) :] if name.startswith(directory) else name
    return not any(part.startswith((".", "_")) for part in inside.split("/"))
