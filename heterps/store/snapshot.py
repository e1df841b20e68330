"""Snapshots of a table: one file, written beside and renamed into place, every part of it checked when it is read.

A file is a sequence of blocks, each `length (8 bytes) | CRC-32 (4 bytes) | payload`, after the magic `HPSSNAP1`. The
first block is the header (JSON: identity, parent, configuration, steps, …); then ids that were removed (int64); then
candidates (ids, lives); then chunks of rows (ids, weights, state, lives: a block each); then an empty block, and the
number of rows in all. Numbers are little-endian. A delta holds the rows changed since its parent.
"""

from __future__ import annotations

import json
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from heterps import _native
from heterps.errors import InvalidInput
from heterps.store.config import TableConfig
from heterps.store.replacing import replacing

MAGIC = b"HPSSNAP1"
FORMAT = "heterps.snapshot/1"
SUFFIX = ".hps"
ROWS_AT_ONCE = 16_384
"""Rows of a chunk: copying so many holds up training for less than a millisecond or two."""

_HEAD = struct.Struct("<QI")
_COUNT = struct.Struct("<Q")
Keep = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


def save(
    core: _native.SparseTable,
    config: TableConfig,
    path: str | PathLike[str],
    *,
    parent: str | None,
    seconds: int,
    finite: bool = False,
) -> str:
    """Writes a snapshot and returns its identity; with `parent`, the delta since that one. `seconds`: the clock now.

    Raises:
        InvalidInput: for a delta of a table that was never saved or loaded; with `finite`, for a row that is no number.
    """
    if parent == "":
        raise InvalidInput(f"{path}: a delta needs a snapshot before it; save the table whole first")
    identity = uuid.uuid4().hex
    steps, seconds, removed, waiting, waiting_lives = core.begin_save(parent is not None, seconds)
    done = False
    try:
        with replacing(Path(path)) as file:
            header = {
                "format": FORMAT, "identity": identity, "parent": parent, "config": config.to_dict(),
                "steps": steps, "seconds": seconds,
            }  # fmt: skip
            file.write(MAGIC)
            _write(file, json.dumps(header).encode())
            _write(file, removed)
            _write(file, waiting)
            _write(file, waiting_lives)
            rows = 0
            while len((chunk := core.save_some(ROWS_AT_ONCE))[0]):
                rows += len(chunk[0])
                if finite:
                    _check_finite(config.name, chunk[0], chunk[1])
                for part in chunk:
                    _write(file, part)
            _write(file, b"")
            _write(file, _COUNT.pack(rows))
        done = True
    finally:
        core.end_save(done)
    return identity


def _check_finite(table: str, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
    # Neither passes over a NaN, and both are faster than to look at each number.
    if not (np.isfinite(rows.min()) and np.isfinite(rows.max())):
        first = ids[~np.isfinite(rows).all(axis=1)][0]
        raise InvalidInput(f"table {table!r}: the row of id {first} is no number any more")


def load(
    core: _native.SparseTable,
    config: TableConfig,
    path: str | PathLike[str],
    *,
    parent: str,
    clock: Callable[[], int],
    keep: Keep | None,
) -> str:
    """Reads a snapshot, or all of a directory, into the table and returns its identity.

    Files are checked whole, and `keep` is asked for all ids once, before anything changes. The table's time goes on
    from what was saved. Shards may have been ahead of each other: a row is as long unseen as it was in its own.

    Raises:
        InvalidInput: if a file is corrupt, cut short, of another table, or a delta of another parent.
    """
    source = Path(path)
    files = _files(source) if source.is_dir() else [source]
    headers = [_check(file, config, keep) for file in files]
    deltas = {header["parent"] is not None for header in headers}
    if len(deltas) > 1:
        raise InvalidInput(f"{source}: whole snapshots and deltas side by side; keep them in directories of their own")
    is_delta = deltas.pop()
    parents = {header["parent"] for header in headers}
    if is_delta and source.is_file() and parents != {parent}:
        raise InvalidInput(
            f"{source}: a delta on top of snapshot {headers[0]['parent']}, but the table holds {parent or 'none'}; "
            "load its parent first"
        )
    steps, seconds = (max(header[name] for header in headers) for name in ("steps", "seconds"))
    core.begin_load(not is_delta, steps, seconds, clock())
    for file, header in zip(files, headers, strict=True):
        behind = np.array([0, steps - header["steps"], seconds - header["seconds"]], np.uint32)
        _read_into(core, config, file, keep, behind)
    core.end_load()
    return str(headers[0]["identity"])


def _files(directory: Path) -> list[Path]:
    """The snapshots of a directory: those its manifest names, if it has one, without the leftovers of a crash."""
    manifest = directory / "manifest.json"
    if manifest.is_file():
        try:
            return [directory / part["file"] for part in json.loads(manifest.read_text())["files"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidInput(f"{manifest}: not a manifest of snapshots: {error!r}") from None
    files = sorted(directory.glob(f"*{SUFFIX}"))
    if not files:
        raise InvalidInput(f"{directory}: no snapshot in this directory (no file ends in {SUFFIX})")
    return files


def export(core: _native.SparseTable, config: TableConfig, path: str | PathLike[str]) -> None:
    """Writes the rows of this moment as Parquet, with columns `id` (int64) and `vector` (a list of `dim` floats)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    vector = pa.list_(pa.float32(), config.dim)
    schema = pa.schema([("id", pa.int64()), ("vector", vector)])
    with replacing(Path(path)) as file, pq.ParquetWriter(file, schema) as writer:
        for ids, weights, _ in scan(core):
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(weights.ravel()), config.dim)
            writer.write_table(pa.table([pa.array(ids), vectors], schema=schema))


def scan(core: _native.SparseTable) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]]:
    """Ids, rows and state of this moment, some at a time, in no order; other calls may go on meanwhile."""
    core.begin_scan()
    try:
        while len((chunk := core.save_some(ROWS_AT_ONCE))[0]):
            yield chunk[0], chunk[1], chunk[2]
    finally:
        core.end_save(False)


def _write(file: BinaryIO, payload: bytes | NDArray[Any]) -> None:
    data = payload if isinstance(payload, bytes) else np.ascontiguousarray(payload).reshape(-1).view(np.uint8).data
    file.write(_HEAD.pack(len(data), zlib.crc32(data)))
    file.write(data)


def _blocks(path: Path) -> Iterator[bytes]:
    """The payloads of a file's blocks, each checked."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InvalidInput(f"{path}: not a snapshot of a table (it does not begin with {MAGIC.decode()})")
        while head := file.read(_HEAD.size):
            length, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (size, 0)
            if length > size - file.tell():
                raise InvalidInput(f"{path}: cut short: {size:,} bytes are not all of it; use another snapshot")
            payload = file.read(length)
            if zlib.crc32(payload) != checksum:
                raise InvalidInput(f"{path}: corrupt: a checksum does not match near byte {file.tell():,}")
            yield payload


def _check(path: Path, config: TableConfig, keep: Keep | None) -> dict[str, Any]:
    """The header of a file that is whole and fits the table, and whose ids `keep` can tell apart."""
    if not path.is_file():
        raise InvalidInput(f"{path}: no such snapshot")
    blocks = _blocks(path)
    header: dict[str, Any] = json.loads(_next(blocks, path))
    if header.get("format") != FORMAT:
        raise InvalidInput(f"{path}: format {header.get('format')!r}, where {FORMAT!r} can be read")
    saved = TableConfig.from_dict(header["config"])
    for name in ("dim", "name", "seed", "init_scale", "state_floats", "tracks"):
        if getattr(saved, name) != getattr(config, name):
            raise InvalidInput(
                f"{path}: of a table with {name} {getattr(saved, name)!r}, not {getattr(config, name)!r}"
            )
    if saved.optimizer.name != config.optimizer.name:
        raise InvalidInput(f"{path}: of optimizer {saved.optimizer.name}, not {config.optimizer.name}")
    for _ in range(2):
        _kept(_next(blocks, path), keep)
    _next(blocks, path)
    rows = 0
    while ids := _next(blocks, path):
        rows += len(_kept(ids, keep)[0])
        for _ in range(3):
            _next(blocks, path)
    if rows != _COUNT.unpack(_next(blocks, path))[0] or next(blocks, None) is not None:
        raise InvalidInput(f"{path}: corrupt: the number of rows is another than it says")
    return header


def _next(blocks: Iterator[bytes], path: Path) -> bytes:
    try:
        return next(blocks)
    except StopIteration:
        raise InvalidInput(f"{path}: cut short: its end is missing; use another snapshot") from None


def _kept(payload: bytes, keep: Keep | None) -> tuple[NDArray[np.int64], NDArray[np.bool_] | slice]:
    """The ids of a block, and which of them to keep."""
    ids = np.frombuffer(payload, "<i8")
    if keep is None or not len(ids):
        return ids, slice(None)
    kept = np.asarray(keep(ids))
    if kept.dtype != np.bool_ or kept.shape != ids.shape:
        raise InvalidInput(f"keep gives a bool for each of {len(ids)} ids, not {kept.dtype} of shape {kept.shape}")
    return ids, kept


def _read_into(
    core: _native.SparseTable, config: TableConfig, path: Path, keep: Keep | None, behind: NDArray[np.uint32]
) -> None:
    """Adds a file's contents; `behind` is added to each life, to make up for a shard that was behind others."""
    blocks = _blocks(path)
    next(blocks)
    removed, kept = _kept(next(blocks), keep)
    core.remove(np.ascontiguousarray(removed[kept]))
    waiting, kept = _kept(next(blocks), keep)
    core.insert_candidates(np.ascontiguousarray(waiting[kept]), (_matrix(next(blocks), "<u4", 3) + behind)[kept])
    while payload := next(blocks):
        ids, kept = _kept(payload, keep)
        weights = _matrix(next(blocks), "<f4", config.dim)[kept]
        state = _matrix(next(blocks), "<f4", config.state_floats, rows=len(payload) // 8)[kept]
        lives = _matrix(next(blocks), "<u4", 3) + behind
        core.insert(np.ascontiguousarray(ids[kept]), np.ascontiguousarray(weights), np.ascontiguousarray(state),
                    np.ascontiguousarray(lives[kept] if len(lives) else lives))  # fmt: skip


def _matrix(payload: bytes, dtype: str, columns: int, rows: int = -1) -> NDArray[Any]:
    values = np.frombuffer(payload, dtype)
    return values.reshape(rows if columns == 0 else -1, columns)
