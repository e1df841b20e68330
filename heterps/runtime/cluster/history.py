"""What a coordinator must know of its run beyond checkpoints: kept beside them, so that another one can go on."""

from __future__ import annotations

import array
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from heterps.storage import Place, place, write_json


class History:
    """The losses of a run, one a step, and a few facts, in two files of the checkpoints' directory.

    Losses are only added at the end, before the checkpoint of their step is committed: those beyond the newest
    checkpoint did not survive, and are cut off by whoever goes on. In storage behind a URL, where nothing can be
    added to a file, it is written anew: 8 bytes a step are little beside a checkpoint.
    """

    def __init__(self, directory: Place | str, job: str) -> None:
        found = place(directory)
        self._facts, self._losses = found / f".run-{job}.json", found / f".losses-{job}.f64"

    def facts(self) -> dict[str, Any] | None:
        """What was noted last; None if this run has not begun."""
        with suppress(FileNotFoundError):
            return dict(json.loads(self._facts.read_text()))
        return None

    def note(self, facts: dict[str, Any]) -> None:
        """Replaces the facts."""
        write_json(self._facts, facts)

    def losses(self, count: int) -> list[float]:
        """The first `count` losses; later ones are cut off."""
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
        added = array.array("d", losses)
        if not isinstance(self._losses, Path):
            self._losses.write_bytes((self._known() + added).tobytes())
            return
        with self._losses.open("ab") as file:
            added.tofile(file)
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """The run is over, and has told its losses."""
        self._facts.unlink(missing_ok=True)
        self._losses.unlink(missing_ok=True)

    def _known(self) -> array.array[float]:
        try:
            return array.array("d", self._losses.read_bytes())
        except FileNotFoundError:
            return array.array("d")
