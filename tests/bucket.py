"""Storage for tests: file systems of fsspec over a directory, seen by all processes that import this module.

`bucket:///directory/…` is like an object store: files come whole or not at all, nothing can be renamed, copied or
added to, there are no directories, and listings are remembered until someone says otherwise. `folder:///directory/…`
is like HDFS: files show while they are written, and directories are walked one by one.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
from fsspec.spec import AbstractFileSystem

HIDDEN = ".uploading-"
before: list[Callable[[str, str], None]] = []
"""Called with the verb (put, get, remove, list) and the path of everything that is done in this process."""


def url(directory: Path, kind: str = "bucket") -> str:
    return f"{kind}://{directory}"


def _do(verb: str, path: str) -> None:
    for call in before:
        call(verb, path)


class Bucket(AbstractFileSystem):  # type: ignore[misc]
    """See the module."""

    protocol = "bucket"

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path).rstrip("/")
        if path not in self.dircache:
            _do("list", path)
            found = [_info(entry) for entry in sorted(_listed(Path(path))) if entry.is_file() or _holds(entry)]
            if not found:
                raise FileNotFoundError(path)
            self.dircache[path] = found
        entries = self.dircache[path]
        return entries if detail else [entry["name"] for entry in entries]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path).rstrip("/")
        known = self.dircache.get(self._parent(path))
        if known is not None and not any(entry["name"] == path for entry in known):
            raise FileNotFoundError(path)
        _do("list", path)
        if not Path(path).is_file() and not _holds(Path(path)):
            raise FileNotFoundError(path)
        return _info(Path(path))

    def find(self, path: str, *args: Any, **_: Any) -> list[str]:
        path = self._strip_protocol(path).rstrip("/")
        _do("list", path)
        if not Path(path).exists():
            raise FileNotFoundError(path)  # as for a bucket that is not there
        if Path(path).is_file():
            return [path]
        return sorted(str(entry) for entry in Path(path).rglob("*") if entry.is_file() and HIDDEN not in entry.name)

    def invalidate_cache(self, path: str | None = None) -> None:
        self.dircache.clear()

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        target = Path(self._strip_protocol(rpath))
        draft = target.with_name(f"{HIDDEN}{uuid.uuid4().hex}")
        target.parent.mkdir(parents=True, exist_ok=True)
        self._copy(lpath, draft, str(target))
        draft.replace(target)
        _do("put", str(target))

    def _copy(self, source: str, draft: Path, path: str) -> None:
        """Half of it, then what a test wants to happen, then all of it."""
        data = Path(source).read_bytes()
        draft.write_bytes(data[: len(data) // 2])
        _do("put", path)
        draft.write_bytes(data)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode != "rb":
            raise NotImplementedError(f"an object store has no mode {mode}")
        _do("get", path)
        return Path(path).open("rb")

    def rm_file(self, path: str) -> None:
        _do("remove", path)
        target = Path(self._strip_protocol(path))
        target.unlink()
        with suppress(OSError):
            target.parent.rmdir()  # without files there is no directory
            target.parent.parent.rmdir()
            target.parent.parent.parent.rmdir()

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        found = self.find(path)
        if not found:
            raise FileNotFoundError(path)
        for name in found:
            self.rm_file(name)

    def mv(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("an object store cannot rename")

    def cp_file(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("not needed")


class Folder(Bucket):
    """See the module."""

    protocol = "folder"
    find = AbstractFileSystem.find

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        target = Path(self._strip_protocol(rpath))
        target.parent.mkdir(parents=True, exist_ok=True)
        self._copy(lpath, target, str(target))
        _do("put", str(target))

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        if not Path(path).exists():
            raise FileNotFoundError(path)
        _do("remove", path)
        shutil.rmtree(path)


def _listed(path: Path) -> list[Path]:
    return [entry for entry in path.iterdir() if HIDDEN not in entry.name] if path.is_dir() else [path] * path.is_file()


def _holds(path: Path) -> bool:
    return any(entry.is_file() and HIDDEN not in entry.name for entry in path.rglob("*"))


def _info(path: Path) -> dict[str, Any]:
    kind = "directory" if path.is_dir() else "file"
    return {"name": str(path), "type": kind, "size": path.stat().st_size}


for _kind in (Bucket, Folder):
    fsspec.register_implementation(_kind.protocol, _kind, clobber=True)


if _log := os.environ.get("BUCKET_LOG"):  # of processes that a test starts

    def _note(verb: str, path: str) -> None:
        with Path(_log).open("a") as file:
            file.write(f"{os.getpid()} {verb} {Path(path).name}\n")

    before.append(_note)


# What goes wrong.


class Counting:
    """Counts what is done; at the n-th of some verbs, something happens."""

    def __init__(self, verbs: str, at: int, what: Callable[[], None]) -> None:
        self.verbs, self.at, self.what, self.count = verbs.split(), at, what, 0

    def __call__(self, verb: str, path: str) -> None:
        if verb in self.verbs:
            self.count += 1
            if self.count == self.at:
                self.what()


def die_at(number: int) -> None:
    """SIGKILL in the middle, and at the end, of things that change something: two numbers each."""
    before.append(Counting("put remove", number, lambda: os.kill(os.getpid(), signal.SIGKILL)))


class gone:  # noqa: N801
    """Within it the n-th of some verbs, and all after it, find no storage; without n, only counts them."""

    def __init__(self, verbs: str = "put", at: int = 0) -> None:
        self.verbs, self.at, self.count = verbs.split(), at, 0

    def __enter__(self) -> gone:
        before.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        before.remove(self)

    def __call__(self, verb: str, path: str) -> None:
        if verb in self.verbs:
            self.count += 1
            if self.at and self.count >= self.at:
                raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
