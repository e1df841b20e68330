"""Where checkpoints lie: a directory of this machine, or one that fsspec finds by its URL (s3://, gs://, hdfs://, …).

A directory of this machine is a `Path`. A `Url` has the few verbs of a `Path` that checkpoints need, for storage that
can neither rename nor append: a file is there, whole, when its upload has ended, and replaces an earlier one at once.
Nothing that a file system remembers of earlier listings counts, as other processes write there too. Credentials and
addresses come from the environment, as each package of fsspec has it.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem

from heterps.errors import HeterPSError, InvalidInput

COPIES = "heterps-copy-"
"""How the names of local directories begin that hold what is uploaded or was downloaded."""


class StorageFailed(HeterPSError):
    """Storage behind a URL that could not be read or written."""


@dataclass(frozen=True, order=True, slots=True)
class Url:
    """A directory or a file in storage; `place` makes it. Directories need not be made, and are gone when empty."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> Url:
        return Url(f"{self.url}/{name}")

    @property
    def name(self) -> str:
        """What stands behind the last slash."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> Url:
        """What stands before it."""
        return Url(self.url.rpartition("/")[0])

    def exists(self) -> bool:
        """Whether a file is there, or anything below it."""
        return self._type() is not None

    def is_file(self) -> bool:
        """Whether a file is there."""
        return self._type() == "file"

    def is_dir(self) -> bool:
        """Whether files lie below it."""
        return self._type() == "directory"

    def files(self) -> list[str]:
        """All files below it, by their path from here; "" for itself, if it is a file."""
        with self._explained("listed"), suppress(FileNotFoundError):
            fs, root = self._open()
            found = fs.find(root) if _finds(fs) else _walk(fs, root)
            return sorted(name[len(root) :].lstrip("/") for name in found)
        return []

    def read_bytes(self) -> bytes:
        """The contents of a file; FileNotFoundError if there is none."""
        with self._explained("read"):
            fs, path = self._open()
            data: bytes = fs.cat_file(path)
            return data

    def read_text(self) -> str:
        """The same as text."""
        return self.read_bytes().decode()

    def write_bytes(self, data: bytes | memoryview) -> None:
        """Makes or replaces a file."""
        with to_write(self) as file:
            file.write_bytes(data)

    def write_text(self, text: str) -> None:
        """The same for text."""
        self.write_bytes(text.encode())

    def upload(self, file: Path) -> None:
        """Makes or replaces a file by a local one."""
        with self._explained("written"):
            fs, path = self._open()
            try:
                fs.put_file(str(file), path)  # unlike others, this makes directories where there are such things
            except FileNotFoundError as error:
                raise StorageFailed(f"{self} cannot be written: {error}; make the bucket first") from error

    def download(self, file: Path) -> None:
        """Copies it to a local file; FileNotFoundError if it is not there."""
        with self._explained("read"):
            fs, path = self._open()
            fs.get_file(path, str(file))

    def unlink(self, *, missing_ok: bool = False) -> None:
        """Removes a file."""
        with self._explained("removed"), suppress(*([FileNotFoundError] if missing_ok else [])):
            fs, path = self._open()
            fs.rm_file(path)

    def remove(self) -> None:
        """Removes a directory with all that lies below it, if it is there."""
        with self._explained("removed"), suppress(FileNotFoundError):
            fs, path = self._open()
            fs.rm(path, recursive=True)

    def _type(self) -> str | None:
        with self._explained("read"), suppress(FileNotFoundError):
            fs, path = self._open()
            return str(fs.info(path)["type"])  # fsspec's `exists` says no as well when storage cannot be reached
        return None

    def _open(self) -> tuple[Any, str]:
        """Its file system, and its path there."""
        try:
            fs, path = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            missing = getattr(error.__cause__, "name", None)
            raise InvalidInput(f"{self}: {error}" + (f": pip install {missing}" if missing else "")) from None
        except ValueError as error:
            raise InvalidInput(f"{self}: {error}; s3://, gs://, hdfs:// and more are known to fsspec") from None
        fs.invalidate_cache()
        return fs, path.rstrip("/")

    @contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Packages raise errors of many kinds; they become one that names the URL. No file is no error of storage."""
        try:
            yield
        except (FileNotFoundError, HeterPSError):
            raise
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise StorageFailed(
                f"{self} cannot be {what}: {reason}; are the address and the credentials in the environment right?"
            ) from error


Place = Path | Url
"""A directory or a file, here or in storage."""


def place(where: str | os.PathLike[str] | Url) -> Place:
    """The place of a path, made absolute, or of a URL; file:// is a path.

    Raises:
        InvalidInput: for a URL without a directory, with characters of patterns, or of an unknown kind.
    """
    if isinstance(where, Url):
        return where
    text = os.fspath(where)
    protocol, found, rest = text.partition("://")
    if not found:
        return Path(text).absolute()
    if protocol in LocalFileSystem.protocol:
        return Path(LocalFileSystem._strip_protocol(text))
    if not rest.strip("/") or any(char in rest for char in "*?["):
        raise InvalidInput(f"{text}: the URL of a directory is protocol://bucket/path, without any of * ? [")
    url = Url(text.rstrip("/"))
    with url._explained("reached"):
        url._open()
    return url


@contextmanager
def to_write(target: Place) -> Iterator[Path]:
    """A local file to write: the target itself, or one that is uploaded at the end. TMPDIR says where that lies."""
    if isinstance(target, Path):
        yield target
        return
    with _temporary(target) as file:
        yield file
        target.upload(file)


@contextmanager
def to_read(source: Place, names: Sequence[str] | None = None) -> Iterator[Path]:
    """A local file, or a directory of files: the source itself, or a copy that is removed at the end.

    With `names`, a copy of a directory has these files only.
    """
    if isinstance(source, Path):
        yield source
        return
    with _temporary(source) as copy:
        for name in (source.files() or [""]) if names is None else names:
            file = copy / name
            file.parent.mkdir(parents=True, exist_ok=True)
            (source / name if name else source).download(file)
        yield copy


@contextmanager
def _temporary(of: Url) -> Iterator[Path]:
    """A local name for something in storage; errors that name it name the URL instead."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=COPIES) as folder, _opened(folder) as held:
        with suppress(OSError):  # where there are no locks, nothing counts as abandoned
            fcntl.flock(held, fcntl.LOCK_EX)
        local = Path(folder) / of.name
        try:
            yield local
        except HeterPSError as error:
            if str(local) not in str(error):
                raise
            raise type(error)(str(error).replace(str(local), str(of))) from error


def _remove_abandoned() -> None:
    """Removes local copies of processes that were killed: they may be large, and would fill the disk in time.

    Whoever makes one holds its lock before anything lies in it, and to the end: one that holds something and is not
    locked is nobody's. An empty one may be new.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{COPIES}*"):
        with suppress(OSError), _opened(folder) as found:
            fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(found).st_uid == os.geteuid() and any(folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _opened(folder: str | Path) -> Iterator[int]:
    """The descriptor of a directory; a link to one is refused, as others may put it into a directory that all share."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_json(target: Place, data: object) -> None:
    """Replaces a file atomically: readers see the old one or the new one, also after a crash or an error."""
    text = json.dumps(data, indent=1) + "\n"
    if isinstance(target, Url):
        target.write_text(text)
        return
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync(target.parent)


def sync(path: Path) -> None:
    """Brings a file, or the names in a directory, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(target: Place) -> None:
    """Removes a directory with all that lies in it, as far as that can be done."""
    if isinstance(target, Path):
        shutil.rmtree(target, ignore_errors=True)
        return
    with suppress(StorageFailed):
        target.remove()


def _finds(fs: Any) -> bool:
    """Whether a file system has a way of its own to list all files below a path, as object stores have."""
    own = getattr(type(fs), "_find", type(fs).find)
    return own not in (AbstractFileSystem.find, AsyncFileSystem._find)


def _walk(fs: Any, path: str) -> Iterator[str]:
    """All files below a path. fsspec's own walk takes a directory for empty that it could not read."""
    try:
        entries = fs.ls(path, detail=True)
    except FileNotFoundError:
        return
    for entry in entries:
        name = entry["name"].rstrip("/")
        if entry["type"] != "directory":
            yield name
        elif name != path:
            yield from _walk(fs, name)
