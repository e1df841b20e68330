"""What a coordinator must know of its run beyond checkpoints: kept beside them, so that another one can go on."""

from __future__ import annotations

import array
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heterps.errors import HeterPSError
from heterps.runtime.contents import CheckpointFailed
from heterps.storage import Place, StorageFailed, place, write_json


class History:
    """The losses of a run, one a step, and a few facts, in two files of the checkpoints' directory.

    Losses are only added at the end, before the checkpoint of their step is committed: those beyond the newest
    checkpoint did not survive, and are cut off by whoever goes on. In storage behind a URL, where nothing can be
    added to a file, it is written anew: 8 bytes a step are little beside a checkpoint.

    A file that cannot be read or written (a full disk) raises `CheckpointFailed`, or `StorageFailed` behind a URL: as
    with a checkpoint that fails, it may be better the next time.
    """

    def __init__(self, directory: Place | str, job: str) -> None:
        found = place(directory)
        self._facts, self._losses = found / f".run-{job}.json", found / f".losses-{job}.f64"

    def facts(self) -> dict[str, Any] | None:
        """What was noted last; None if this run has not begun."""
        with _naming(self._facts, "read"), suppress(FileNotFoundError):
            return dict(json.loads(self._facts.read_text()))
        return None

    def note(self, facts: dict[str, Any]) -> None:
        """Replaces the facts."""
        with _naming(self._facts, "written"):
            write_json(self._facts, facts)

    def losses(self, count: int) -> list[float]:
        """The first `count` losses; later ones are cut off."""
        with _naming(self._losses, "read"):
            return self._cut(count)

    def _cut(self, count: int) -> list[float]:
        if not isinstance(self._losses, Path):
            known = self._known()
            if len(known) > count:
                self._losses.write_bytes(known[:count].tobytes())
            return list(known[:count])
        if not self._losses.exists():
            return []
        with self._losses.open("r+b") as file:
            file.truncate(8 * min(count, self._losses.stat().st_size // 8))
            return list(array.array("d", file.read()))

    def add(self, losses: list[float]) -> None:
        """Adds losses at the end; they are on disk, or in storage, when this returns."""
        with _naming(self._losses, "written"):
            self._append(array.array("d", losses))

    def _append(self, added: array.array[float]) -> None:
        if not isinstance(self._losses, Path):
            self._losses.write_bytes((self._known() + added).tobytes())
            return
        with self._losses.open("ab") as file:
            added.tofile(file)
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """The run is over, and has told its losses; what cannot be removed is in nobody's way."""
        for file in (self._facts, self._losses):
            with suppress(OSError, StorageFailed):
                file.unlink(missing_ok=True)

    def _known(self) -> array.array[float]:
        try:
            return array.array("d", self._losses.read_bytes())
        except FileNotFoundError:
            return array.array("d")


@contextmanager
def _naming(file: Place, what: str) -> Iterator[None]:
    """Whatever the file system raises becomes an error that names the file, and that counts as a failed checkpoint."""
    try:
        yield
    except HeterPSError:
        raise
    except (OSError, ValueError) as error:  # where files show while they are written, one may be read half
        reason = getattr(error, "strerror", None) or error
        raise CheckpointFailed(f"{file} cannot be {what}: {reason}") from error
