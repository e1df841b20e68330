"""Files that are written beside and renamed into place, and what killed writers leave of them."""

from __future__ import annotations

import fcntl
import os
import platform
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from heterps.errors import HeterPSError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when all is written and on disk; otherwise `path` stays as it was."""
    draft = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(path)
        draft, handle = _new_draft(path)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            draft.replace(path)  # while it is locked
        draft = None
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise HeterPSError(f"{path}: could not be written: {error.strerror or error}") from error
    finally:
        if draft is not None:
            draft.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    """How the names of drafts of `path` begin. The machine's name is in it: locks may not reach further."""
    return f".{path.name}.{zlib.crc32(platform.node().encode()):08x}-"


def _new_draft(path: Path) -> tuple[Path, int]:
    """A new file beside `path` and its handle, with the mode that the umask gives, locked as long as it is open."""
    while True:
        draft = path.with_name(f"{_prefix(path)}{uuid.uuid4().hex[:8]}")
        handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with suppress(OSError):  # a file system without locks: then nobody removes leftovers
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink > 0:
            return draft, handle
        os.close(handle)  # another process took it for a leftover before it was locked


def _remove_leftovers(path: Path) -> None:
    """Removes drafts of `path` whose writers are gone: a process's locks end with it, however it ends."""
    for draft in path.parent.iterdir():
        if draft.name.startswith(_prefix(path)):
            with suppress(OSError), draft.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                draft.unlink()
