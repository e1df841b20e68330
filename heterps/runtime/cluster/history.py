"""What a coordinator must know of its run beyond checkpoints: kept beside them, so that another one can go on."""

from __future__ import annotations

import array
import json
import os
from pathlib import Path
from typing import Any

from heterps.ps.persistence import write_json


class History:
    """The losses of a run, one a step, and a few facts, in two files of the checkpoints' directory.

    Losses are only added at the end, before the checkpoint of their step is committed: those beyond the newest
    checkpoint did not survive, and are cut off by whoever goes on.
    """

    def __init__(self, directory: Path, job: str) -> None:
        self._facts, self._losses = directory / f".run-{job}.json", directory / f".losses-{job}.f64"

    def facts(self) -> dict[str, Any] | None:
        """What was noted last; None if this run has not begun."""
        return dict(json.loads(self._facts.read_text())) if self._facts.exists() else None

    def note(self, facts: dict[str, Any]) -> None:
        """Replaces the facts."""
        write_json(self._facts, facts)

    def losses(self, count: int) -> list[float]:
        """The first `count` losses; later ones are cut off."""
        if not self._losses.exists():
            return []
        with self._losses.open("r+b") as file:
            file.truncate(8 * min(count, self._losses.stat().st_size // 8))
            return list(array.array("d", file.read()))

    def add(self, losses: list[float]) -> None:
        """Adds losses at the end; they are on disk when this returns."""
        with self._losses.open("ab") as file:
            array.array("d", losses).tofile(file)
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        """The run is over, and has told its losses."""
        self._facts.unlink(missing_ok=True)
        self._losses.unlink(missing_ok=True)
