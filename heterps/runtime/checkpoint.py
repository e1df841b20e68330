"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint is a directory `step-000000100` with

    state.json          step, samples, data position, metrics, which checkpoint its tables build on, checksums
    dense.safetensors   the dense weights, by name
    training.pt         optimizer state by parameter name, random state
    tables/NAME         a snapshot of each table, full or a delta

On this machine it is written under another name and renamed when it is whole and on disk, so that a killed run leaves
only whole ones; `latest` names the newest. Older ones are removed when nothing builds on them any more.

In storage behind a URL nothing can be renamed. All files but `state.json` go into a directory of their own below it,
`parts-1a2b3c4d`, which `state.json` names; that comes last, and makes the checkpoint: without it there is none. So a
checkpoint that is saved again, even by two processes at once, is always one of them. What killed runs leave behind is
removed by the next save.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from heterps.errors import HeterPSError
from heterps.runtime import contents
from heterps.runtime.checks import check_above_zero, check_whole
from heterps.runtime.contents import FORMAT, CheckpointFailed, State, files_of, read_header
from heterps.storage import Place, StorageFailed, Url, place, remove, sync
from heterps.store import SparseTable, Table

__all__ = ["CheckpointFailed", "Checkpoints", "State", "Store"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    """Where and how often a run saves. It also saves at its end, and when it is interrupted."""

    path: str | os.PathLike[str]
    """A directory, or the URL of one in storage, as fsspec has it: s3://bucket/run, gs://, hdfs://, …"""
    every_steps: int | None = None
    every_minutes: float | None = None
    delta: bool = True
    """Save only the rows that changed since the last checkpoint, but for every tenth one."""
    keep: int = 2
    """Newest checkpoints to keep, with what they build on."""

    def __post_init__(self) -> None:
        check_whole("checkpoints: keep", self.keep, least=1)
        if self.every_steps is not None:
            check_whole("checkpoints: every_steps", self.every_steps, least=1)
        if self.every_minutes is not None:
            check_above_zero("checkpoints: every_minutes", self.every_minutes)


class Store:
    """Saves and loads the checkpoints of one directory, here or in storage. One process at a time saves there."""

    FULL_EVERY = 10

    def __init__(self, options: Checkpoints) -> None:
        self.options = options
        self.path: Place = place(options.path)
        if isinstance(self.path, Path):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointFailed(f"checkpoints in {self.path}: {error.strerror}; choose another path") from error
        self._previous: str | None = None
        self._deltas = 0
        self._lost: set[str] = set()
        """Checkpoints after the one that was taken up: of a run that was killed before `latest` named them."""

    def newest(self) -> Place | None:
        """The newest whole checkpoint: the one `latest` names, or the last one if that is not there."""
        whole = self._whole()
        try:
            name = (self.path / "latest").read_text().strip()
        except FileNotFoundError:
            name = ""
        except OSError as error:
            raise CheckpointFailed(f"{self.path / 'latest'} cannot be read: {error.strerror or error}") from error
        if self.path / name in whole:
            return self.path / name
        if isinstance(self.path, Url):  # storage may show a file whose upload was killed; `latest` does not name it
            readable = [path for path in whole if contents.is_readable(path)]
            whole = readable or (whole if name else [])
        return whole[-1] if whole else None

    def _whole(self) -> list[Place]:
        if isinstance(self.path, Path):
            return sorted(path.parent for path in self.path.glob("step-*/state.json"))
        return sorted(self.path / name for name, files in self._folders().items() if "state.json" in files)

    def _folders(self) -> dict[str, set[str]]:
        """In storage: what lies in each directory of a checkpoint, whole or not."""
        assert isinstance(self.path, Url)
        folders: dict[str, set[str]] = {}
        for name, *rest in (file.split("/") for file in self.path.files()):
            if name.startswith("step-") and rest:
                folders.setdefault(name, set()).add(rest[0])
        return folders

    def save(
        self, state: State, tables: Mapping[str, Table], *, before_commit: Callable[[], None] = lambda: None
    ) -> Place:
        """Writes a checkpoint; when this returns it is on disk or in storage, whole.

        `before_commit` is called when everything is written and nothing counts yet: if it raises, nothing ever does.
        """
        name = f"step-{state.step:09d}"
        target = self.path / name
        delta = self.options.delta and self._previous not in (None, name) and self._deltas < self.FULL_EVERY - 1
        header = self._header(state, tables, delta)
        save = self._save_here if isinstance(self.path, Path) else self._save_there
        try:
            save(name, header, state, tables, before_commit)
        except (OSError, RuntimeError, SafetensorError, HeterPSError) as error:  # a full disk may be any of these
            self._previous = None  # the tables' next delta would build on what is gone
            reason = getattr(error, "strerror", None) or error
            raise CheckpointFailed(f"checkpoint {target}: {reason}; earlier ones are intact") from error
        self._previous = name
        self._deltas = self._deltas + 1 if delta else 0
        try:
            self._remove_old(name)
        except OSError as error:
            reason = error.strerror or error
            raise CheckpointFailed(f"checkpoint {target} is saved; older ones cannot be removed: {reason}") from error
        except (StorageFailed, CheckpointFailed):
            if isinstance(self.path, Path):
                raise  # storage is tried again at the next save: this one is done
        return target

    def _save_here(
        self, name: str, header: dict[str, Any], state: State, tables: Mapping[str, Table], before: Callable[[], None]
    ) -> None:
        """On this machine: written under another name, brought to disk, and renamed."""
        assert isinstance(self.path, Path)
        target, draft = self.path / name, self.path / f".draft-{name}-{os.getpid()}"
        try:
            shutil.rmtree(draft, ignore_errors=True)
            (draft / "tables").mkdir(parents=True)
            checksums = contents.write(draft, state, tables, delta=header["builds_on"] is not None)
            (draft / "state.json").write_text(json.dumps({**header, "checksums": checksums}, indent=1))
            _sync(draft)
            before()
            if target.exists():
                self._discard(target)
            draft.rename(target)
            latest = self.path / ".latest"
            latest.write_text(name)
            sync(latest)
            latest.replace(self.path / "latest")
            sync(self.path)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise

    def _save_there(
        self, name: str, header: dict[str, Any], state: State, tables: Mapping[str, Table], before: Callable[[], None]
    ) -> None:
        """In storage: all files, then `state.json`, which makes the checkpoint, then `latest`.

        After an error nothing is removed: whether storage has taken `state.json` all the same cannot be known.
        """
        target, parts = self.path / name, f"parts-{uuid.uuid4().hex[:8]}"
        checksums = contents.write(target / parts, state, tables, delta=header["builds_on"] is not None)
        self._check_there(target / parts, header["builds_on"], tables)
        before()
        (target / "state.json").write_text(json.dumps({**header, "checksums": checksums, "parts": parts}, indent=1))
        (self.path / "latest").write_text(name)

    def _check_there(self, files: Place, base: str | None, tables: Mapping[str, Table]) -> None:
        """Whoever saves removes what others left behind: a process taken for dead must not commit what is gone."""
        gone = contents.missing(files, tables)
        if base is not None and not (self.path / base / "state.json").exists():
            gone.append(base)
        if gone:
            raise CheckpointFailed(f"{', '.join(gone)} were removed meanwhile; does another run save there, too?")

    def _header(self, state: State, tables: Mapping[str, Table], delta: bool) -> dict[str, Any]:
        return {
            "format": FORMAT, "step": state.step, "samples": state.samples, "position": state.position,
            "metrics": state.metrics, "tables": list(tables), "builds_on": self._previous if delta else None,
            "written": time.time(),
        }  # fmt: skip

    def load(self, path: Place, tables: Mapping[str, Table]) -> State:
        """Reads a checkpoint: tables, random state and the rest."""
        chain = self._chain(path)
        header = read_header(path)
        if set(header["tables"]) != set(tables):
            raise CheckpointFailed(
                f"{path}: has the tables {header['tables']}, the model {list(tables)}; is it another model's?"
            )
        files = files_of(path)
        dense, training = contents.read_dense(path)
        for part in map(files_of, chain):
            for name, table in tables.items():
                contents.load_table(contents.where(part, name, table), table)
        contents.set_random_state(training["random"])
        places = {name: contents.where(files, name, table) for name, table in tables.items()}
        moved = any(places[name].is_dir() == isinstance(table, SparseTable) for name, table in tables.items())
        self._previous = None if moved else path.name  # a table that moved to servers, or back, has no snapshot there
        self._deltas = len(chain) - 1
        self._lost = {other.name for other in self._whole() if other.name > path.name}
        return State(
            step=header["step"], samples=header["samples"], position=header["position"], metrics=header["metrics"],
            dense=dense, optimizer=training["optimizer"],
        )  # fmt: skip

    def _chain(self, path: Place) -> list[Place]:
        """The checkpoint and those its tables build on, the full one first."""
        chain = [path]
        while (below := read_header(chain[0])["builds_on"]) is not None:
            chain.insert(0, self.path / below)
        return chain

    def _remove_old(self, saved: str) -> None:
        self._lost.discard(saved)
        whole = self._whole()
        alive = [path for path in whole if path.name not in self._lost]
        needed = {part for path in alive[-self.options.keep :] for part in self._chain(path)}
        for path in reversed(whole):  # those that build on others first
            if path not in needed:
                self._discard(path)
        self._remove_leftovers(saved)

    def _discard(self, path: Place) -> None:
        """Takes a checkpoint out of the way at once: no kill leaves a part of one that counts as whole."""
        if isinstance(path, Path):
            path.rename(path.with_name(f".draft-old-{path.name}-{time.time_ns()}"))
            return
        with suppress(StorageFailed):
            (path / "state.json").unlink(missing_ok=True)
            path.remove()

    def _remove_leftovers(self, saved: str) -> None:
        """What is no part of a checkpoint: drafts, and uploads of runs that were killed."""
        if isinstance(self.path, Path):
            for draft in self.path.glob(".draft-*"):
                remove(draft)
            return
        folders = self._folders()
        left = [name for name, files in folders.items() if "state.json" not in files]
        others = folders.get(saved, set()) - {"state.json", files_of(self.path / saved).name}
        for name in [*left, *(f"{saved}/{other}" for other in others)]:
            remove(self.path / name)


def _sync(directory: Path) -> None:
    """Brings every file below a directory to disk."""
    below = list(directory.rglob("*"))
    files, folders = [path for path in below if path.is_file()], [path for path in below if path.is_dir()]
    for path in [*files, *folders, directory]:
        sync(path)
