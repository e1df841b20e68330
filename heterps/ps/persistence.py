"""A server's own snapshot: its tables and what it knows of its clients, so that a restart continues where it ended."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import IO

from heterps.errors import InvalidInput
from heterps.ps.hosting import Host
from heterps.ps.locks import lock
from heterps.ps.sessions import Sessions
from heterps.ps.snapshots import remove_except
from heterps.storage import write_json

FORMAT = "heterps.server/1"
MANIFEST = "server.json"
LOCK = "server.lock"


def claim(directory: Path) -> IO[bytes]:
    """Makes a server's directory, if it is missing, and holds it until the returned file is closed.

    Raises:
        InvalidInput: it is no directory that can be written to, or another server has it.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"save-dir {directory}: not a directory that can be made ({error.strerror})") from None
    return lock(directory / LOCK, f"save-dir {directory}: another server has it; each needs one of its own")


def save_server(directory: Path, host: Host, sessions: Sessions) -> None:
    """Writes every table, then the manifest that makes them valid; what an older manifest named is removed last."""
    generation = uuid.uuid4().hex[:12]
    tables = []
    for number, hosted in enumerate(host.tables.values()):
        file = f"{generation}-{number:05d}.hps"
        hosted.table.save(str(directory / file))
        tables.append({
            "config": hosted.config.to_dict(), "shard": hosted.shard, "shards": hosted.shards, "file": file,
            "applied": hosted.gathering.applied,
        })  # fmt: skip
    write_json(directory / MANIFEST, {"format": FORMAT, "tables": tables, "sessions": sessions.to_dict()})
    remove_except(directory, {entry["file"] for entry in tables})  # type: ignore[misc]


def load_server(directory: Path, host: Host, sessions: Sessions) -> None:
    """Restores what `save_server` wrote; nothing if the directory has no manifest."""
    path = directory / MANIFEST
    if not path.exists():
        return
    try:
        saved = json.loads(path.read_text())
        if saved["format"] != FORMAT:
            raise ValueError(f"format {saved['format']!r}")
        for entry in saved["tables"]:
            hosted = host.open(entry["config"].get("name", "table"), entry)
            hosted.table.load(str(directory / entry["file"]))
            hosted.gathering.applied = entry.get("applied")
        sessions.restore(saved["sessions"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{path}: not a snapshot of a server ({type(error).__name__}: {error})") from None
