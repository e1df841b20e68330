"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint is a directory `step-000000100` with

    state.json          step, samples, data position, metrics, and which checkpoint its tables build on
    dense.safetensors   the dense weights, by name
    training.pt         optimizer state by parameter name, random state
    tables/NAME         a snapshot of each table, full or a delta

It is written under another name and renamed when it is whole and on disk, so that a killed run leaves only whole ones;
`latest` names the newest. Older ones are removed when nothing builds on them any more.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from heterps.errors import HeterPSError, InvalidInput
from heterps.store import SparseTable, Table

FORMAT = "heterps.checkpoint/1"


class CheckpointFailed(HeterPSError):
    """A checkpoint that could not be written or read; earlier ones are as they were."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    """Where and how often a run saves. It also saves at its end, and when it is interrupted."""

    path: str | os.PathLike[str]
    every_steps: int | None = None
    every_minutes: float | None = None
    delta: bool = True
    """Save only the rows that changed since the last checkpoint, but for every tenth one."""
    keep: int = 2
    """Newest checkpoints to keep, with what they build on."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise InvalidInput(f"checkpoints: keep is at least 1, not {self.keep}")
        for name in ("every_steps", "every_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InvalidInput(f"checkpoints: {name} is above 0, not {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class State:
    """What a checkpoint holds beside the tables, which are loaded in place."""

    step: int
    samples: int
    position: Any
    """Of the data reader."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    dense: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


class Store:
    """Saves and loads the checkpoints of one directory."""

    FULL_EVERY = 10

    def __init__(self, options: Checkpoints) -> None:
        self.options = options
        self.path = Path(options.path).absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointFailed(f"checkpoints in {self.path}: {error.strerror}; choose another path") from error
        self._previous: str | None = None
        self._deltas = 0

    def newest(self) -> Path | None:
        """The newest whole checkpoint: the one `latest` names, or the last one if that is not there."""
        whole = self._whole()
        try:
            named = self.path / (self.path / "latest").read_text().strip()
        except FileNotFoundError:
            named = self.path
        return named if named in whole else whole[-1] if whole else None

    def _whole(self) -> list[Path]:
        return sorted(path.parent for path in self.path.glob("step-*/state.json"))

    def save(self, state: State, tables: Mapping[str, Table]) -> Path:
        """Writes a checkpoint; when this returns it is on disk, whole."""
        name = f"step-{state.step:09d}"
        target, draft = self.path / name, self.path / f".draft-{name}-{os.getpid()}"
        delta = self.options.delta and self._previous not in (None, name) and self._deltas < self.FULL_EVERY - 1
        try:
            shutil.rmtree(draft, ignore_errors=True)
            (draft / "tables").mkdir(parents=True)
            for table_name, table in tables.items():
                table.save(_where(draft, table_name, table), delta=delta)
            save_file(_apart(state.dense), draft / "dense.safetensors")
            training = io.BytesIO()  # torch's own writer hides why it fails
            torch.save({"optimizer": state.optimizer, "random": random_state()}, training)
            (draft / "training.pt").write_bytes(training.getbuffer())
            (draft / "state.json").write_text(json.dumps(self._header(state, tables, delta), indent=1))
            _sync(draft)
            if target.exists():
                self._discard(target)
            draft.rename(target)
            latest = self.path / ".latest"
            latest.write_text(name)
            _sync_one(latest)
            latest.replace(self.path / "latest")
            _sync_one(self.path)
        except (OSError, RuntimeError, SafetensorError, HeterPSError) as error:  # a full disk may be any of these
            shutil.rmtree(draft, ignore_errors=True)
            self._previous = None  # the tables' next delta would build on what is gone
            reason = getattr(error, "strerror", None) or error
            raise CheckpointFailed(f"checkpoint {target}: {reason}; earlier ones are intact") from error
        self._previous = name
        self._deltas = self._deltas + 1 if delta else 0
        self._remove_old()
        return target

    def _header(self, state: State, tables: Mapping[str, Table], delta: bool) -> dict[str, Any]:
        return {
            "format": FORMAT, "step": state.step, "samples": state.samples, "position": state.position,
            "metrics": state.metrics, "tables": list(tables), "builds_on": self._previous if delta else None,
            "written": time.time(),
        }  # fmt: skip

    def load(self, path: Path, tables: Mapping[str, Table]) -> State:
        """Reads a checkpoint: tables, random state and the rest."""
        chain = self._chain(path)
        header = _header(path)
        if set(header["tables"]) != set(tables):
            raise CheckpointFailed(
                f"{path}: has the tables {header['tables']}, the model {list(tables)}; is it another model's?"
            )
        with _reading(path / "training.pt") as file:
            training = torch.load(file, map_location="cpu", weights_only=True)
        with _reading(path / "dense.safetensors") as file:
            dense = load_file(file)
        for part in chain:
            for name, table in tables.items():
                with _reading(_where(part, name, table)) as file:
                    table.load(file)
        set_random_state(training["random"])
        moved = any(
            _where(path, name, table).is_dir() == isinstance(table, SparseTable) for name, table in tables.items()
        )
        self._previous = None if moved else path.name  # a table that moved to servers, or back, has no snapshot there
        self._deltas = len(chain) - 1
        return State(
            step=header["step"], samples=header["samples"], position=header["position"], metrics=header["metrics"],
            dense=dense, optimizer=training["optimizer"],
        )  # fmt: skip

    def _chain(self, path: Path) -> list[Path]:
        """The checkpoint and those its tables build on, the full one first."""
        chain = [path]
        while (below := _header(chain[0])["builds_on"]) is not None:
            chain.insert(0, self.path / below)
        return chain

    def _remove_old(self) -> None:
        whole = self._whole()
        needed = {part for path in whole[-self.options.keep :] for part in self._chain(path)}
        for path in reversed(whole):  # those that build on others first
            if path not in needed:
                self._discard(path)
        for draft in self.path.glob(".draft-*"):
            shutil.rmtree(draft, ignore_errors=True)

    def _discard(self, path: Path) -> None:
        """Takes a checkpoint out of the way at once, for `_remove_old`: no kill leaves a part of one."""
        path.rename(self.path / f".draft-old-{path.name}-{time.time_ns()}")


def _where(checkpoint: Path, name: str, table: Table) -> Path:
    """Where a table's snapshot lies: a file, or the directory that its servers write their shards into."""
    place = checkpoint / "tables" / quote(name, safe="")
    file = place.with_name(f"{place.name}.hps")
    return file if file.exists() or (isinstance(table, SparseTable) and not place.exists()) else place


def _header(path: Path) -> dict[str, Any]:
    with _reading(path / "state.json") as file:
        header: dict[str, Any] = json.loads(file.read_text())
        missing = {"step", "samples", "position", "metrics", "tables", "builds_on"} - header.keys()
        if header.get("format") != FORMAT or missing:
            raise ValueError(f"format {header.get('format')!r}, this version reads {FORMAT}")
    return header


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    """Whatever a broken file makes its reader raise becomes an error that names the file."""
    try:
        yield path
    except Exception as error:
        raise CheckpointFailed(f"checkpoint file {path} cannot be read: {error}") from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each with memory of its own, as safetensors wants it: layers may share a weight."""
    seen: set[int] = set()
    own = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        own[name] = tensor.clone(memory_format=torch.contiguous_format) if pointer in seen else tensor.contiguous()
        seen.add(pointer)
    return own


def random_state() -> dict[str, Any]:
    """Of every generator a model may draw from."""
    kind, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(), "numpy": (kind, np.asarray(keys).tolist(), *rest), "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }  # fmt: skip


def set_random_state(state: Mapping[str, Any]) -> None:
    """The inverse of `random_state`; GPUs that were not there then keep theirs."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])


def _sync(directory: Path) -> None:
    """Brings every file below a directory to disk."""
    for path in [*_files(directory), *(path for path in directory.rglob("*") if path.is_dir()), directory]:
        _sync_one(path)


def _files(directory: Path) -> Iterable[Path]:
    return (path for path in directory.rglob("*") if path.is_file())


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
