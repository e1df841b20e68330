"""A snapshot of all shards: a directory with one file a shard, and the manifest that makes them valid together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from heterps.errors import InvalidInput
from heterps.ps.persistence import remove_except, write_json
from heterps.store.config import TableConfig

FORMAT = "heterps.snapshot-of-shards/1"
MANIFEST = "manifest.json"


def commit(directory: Path, files: Sequence[str], identity: str, parent: str, config: TableConfig) -> None:
    """Makes `files`, which the shards have written, the directory's snapshot, atomically; then removes older ones.

    `parent` is the snapshot that a delta starts from, empty for a whole one.
    """
    entries = [{"file": file} for file in files]
    manifest = {"format": FORMAT, "id": identity, "parent": parent, "table": config.to_dict(), "files": entries}
    write_json(directory / MANIFEST, manifest)
    remove_except(directory, set(files))


def read(directory: Path) -> tuple[str, str]:
    """A snapshot's identity and parent; a manifest that is missing, broken or lacks files is refused with its name."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r}")
        missing = [entry["file"] for entry in manifest["files"] if not (directory / entry["file"]).exists()]
        identity, parent = str(manifest["id"]), str(manifest["parent"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path}: not the manifest of a snapshot ({error})") from None
    if missing:
        raise InvalidInput(f"{path}: its files {', '.join(missing)} are missing")
    return identity, parent
