"""The files of one checkpoint: how they are written and read, here or in storage behind a URL."""

from __future__ import annotations

import io
import json
import random
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from heterps.errors import HeterPSError
from heterps.storage import Place, Url, to_read, to_write
from heterps.store import SparseTable, Table

FORMAT = "heterps.checkpoint/1"


class CheckpointFailed(HeterPSError):
    """A checkpoint that could not be written or read; earlier ones are as they were."""


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


def write(files: Place, state: State, tables: Mapping[str, Table], *, delta: bool) -> dict[str, int]:
    """Writes all of a checkpoint but `state.json`; servers write their shards themselves, wherever `files` is.

    Gives the CRC-32 of the files that have none of their own, for `state.json`.
    """
    for name, table in tables.items():
        snapshot = files / "tables" / quote(name, safe="")
        if isinstance(table, SparseTable):
            with to_write(snapshot.parent / f"{snapshot.name}.hps") as file:
                table.save(file, delta=delta, finite=True)  # a run that takes other rows up is lost
        else:
            table.save(str(snapshot), delta=delta, finite=True)
    with to_write(files / "dense.safetensors") as file:
        save_file(_apart(state.dense), file)
        dense = zlib.crc32(file.read_bytes())
    training = io.BytesIO()  # torch's own writer hides why it fails
    torch.save({"optimizer": state.optimizer, "random": random_state()}, training)
    (files / "training.pt").write_bytes(training.getbuffer())
    return {"dense.safetensors": dense, "training.pt": zlib.crc32(training.getbuffer())}


def missing(files: Place, tables: Mapping[str, Table]) -> list[str]:
    """What `write` has written to storage and is not there any more."""
    assert isinstance(files, Url)
    there = {name.removesuffix(".hps").removesuffix("/manifest.json") for name in files.files()}
    written = ["dense.safetensors", "training.pt", *(f"tables/{quote(name, safe='')}" for name in tables)]
    return [name for name in written if name not in there]


def where(files: Place, name: str, table: Table) -> Place:
    """Where a table's snapshot lies: a file, or the directory that its servers write their shards into."""
    folder = files / "tables" / quote(name, safe="")
    file = folder.parent / f"{folder.name}.hps"
    return file if file.exists() or (isinstance(table, SparseTable) and not folder.exists()) else folder


def load_table(snapshot: Place, table: Table) -> None:
    """Puts a snapshot into a table, or has its servers do so."""
    if isinstance(table, SparseTable):
        with reading(snapshot) as file:
            table.load(file)
    else:
        with _naming(snapshot):
            table.load(str(snapshot))


def files_of(checkpoint: Place) -> Place:
    """Where the files of a checkpoint lie: in its directory, or below it if it was saved to storage."""
    parts = read_header(checkpoint).get("parts")
    return checkpoint / parts if parts else checkpoint


def read_header(path: Place) -> dict[str, Any]:
    """What `state.json` of a checkpoint holds, checked."""
    with _naming(path / "state.json"):
        header: dict[str, Any] = json.loads((path / "state.json").read_text())
        missing = {"step", "samples", "position", "metrics", "tables", "builds_on"} - header.keys()
        if header.get("format") != FORMAT or missing:
            raise ValueError(f"format {header.get('format')!r}, this version reads {FORMAT}")
    return header


def is_readable(path: Place) -> bool:
    """Whether a checkpoint has a `state.json` that is not cut short."""
    try:
        json.loads((path / "state.json").read_text())
    except (FileNotFoundError, ValueError):
        return False
    return True


@contextmanager
def reading(path: Place, *, checksum: int | None = None) -> Iterator[Path]:
    """A local file of the same contents, see `_naming`; with a CRC-32, it must be the file's."""
    with _naming(path), to_read(path) as file:
        if checksum is not None and zlib.crc32(file.read_bytes()) != checksum:
            raise ValueError("it is not as it was written; take an earlier checkpoint")
        yield file


def read_dense(checkpoint: Place) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The dense weights of a checkpoint, and the rest of its training state."""
    files, checksums = files_of(checkpoint), read_header(checkpoint).get("checksums", {})
    with reading(files / "training.pt", checksum=checksums.get("training.pt")) as file:
        training = torch.load(file, map_location="cpu", weights_only=True)
    with reading(files / "dense.safetensors", checksum=checksums.get("dense.safetensors")) as file:
        return load_file(file), training


@contextmanager
def _naming(path: Place) -> Iterator[None]:
    """Whatever a broken file makes its reader raise becomes an error that names the file."""
    try:
        yield
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
