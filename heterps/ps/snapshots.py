"""A snapshot of all shards: a directory with one file a shard, and the manifest that makes them valid together.

The directory is one that all servers reach, or one in storage behind a URL, where each of them puts and gets its files.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heterps.errors import InvalidInput
from heterps.storage import Place, StorageFailed, Url, to_read, write_json
from heterps.store.config import TableConfig

FORMAT = "heterps.snapshot-of-shards/1"
MANIFEST = "manifest.json"
SHARD_FILE = re.compile(r"shard-\d{5}-of-(\d{5})-.*\.hps")


def file_names(identity: str, shards: int) -> list[str]:
    """The file of each shard: of this snapshot alone, so that an older one stays whole until this one is."""
    return [f"{_prefix(shard, shards)}{identity[:12]}.hps" for shard in range(shards)]


def _prefix(shard: int, shards: int) -> str:
    return f"shard-{shard:05d}-of-{shards:05d}-"


def commit(directory: Place, files: Sequence[str], identity: str, parent: str, config: TableConfig) -> None:
    """Makes `files`, which the shards have written, the directory's snapshot, atomically; then removes older ones.

    `parent` is the snapshot that a delta starts from, empty for a whole one.
    """
    entries = [{"file": file} for file in files]
    manifest = {"format": FORMAT, "id": identity, "parent": parent, "table": config.to_dict(), "files": entries}
    try:
        write_json(directory / MANIFEST, manifest)
    except OSError as error:
        raise InvalidInput(f"{directory / MANIFEST}: cannot be written ({error.strerror})") from None
    remove_except(directory, set(files))


def make(directory: Place) -> None:
    """Makes a directory for a snapshot, if it is missing; in storage there is nothing to make."""
    if isinstance(directory, Url):
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{directory}: no directory for a snapshot can be made there ({error.strerror}); name another one"
        raise InvalidInput(message) from None


def check_whole(source: Place) -> None:
    """Refuses the file of one shard of several: the rows of the others would be lost."""
    name = str(source).rpartition("/")[2]
    if (found := SHARD_FILE.fullmatch(name)) is not None and int(found[1]) > 1:
        raise InvalidInput(f"{source}: one shard of {int(found[1])}; load the directory that it lies in")


def read(directory: Place) -> tuple[str, str]:
    """A snapshot's identity and parent; a manifest that is missing, broken or lacks files is refused with its name."""
    path = directory / MANIFEST
    manifest, named = _read(directory)
    there = set(directory.files()) if isinstance(directory, Url) else {file.name for file in directory.iterdir()}
    if missing := [name for name in named if name not in there]:
        raise InvalidInput(f"{path}: its files {', '.join(missing)} are missing")
    return str(manifest["id"]), str(manifest["parent"])


@contextmanager
def fetched(source: Place, shard: int, shards: int) -> Iterator[Path]:
    """A snapshot as a local file or directory, for one of `shards`: itself, or a copy of what the shard needs.

    That is its own file if as many shards wrote the snapshot, as they split ids in the same way, and else all of them.
    """
    if isinstance(source, Path) or not source.is_dir():
        with to_read(source) as local:
            yield local
        return
    manifest, named = _read(source)
    own = [name for name in named if name.startswith(_prefix(shard, shards))]
    names = own if len(named) == shards and len(own) == 1 else named
    with to_read(source, names) as local:
        (local / MANIFEST).write_text(json.dumps({**manifest, "files": [{"file": name} for name in names]}))
        yield local


def _read(directory: Place) -> tuple[dict[str, Any], list[str]]:
    """The manifest, and the files it names."""
    path = directory / MANIFEST
    try:
        manifest = json.loads(path.read_text())
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']!r}")
        _ = manifest["id"], manifest["parent"]
        return manifest, [str(entry["file"]) for entry in manifest["files"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path}: not the manifest of a snapshot ({error})") from None


def remove_except(directory: Place, files: set[str]) -> None:
    """Removes the snapshots (*.hps) in a directory, here or in storage, other than `files`."""
    if isinstance(directory, Url):
        with suppress(StorageFailed):  # what stays is in nobody's way
            for name in directory.files():
                if name.endswith(".hps") and "/" not in name and name not in files:
                    (directory / name).unlink(missing_ok=True)
        return
    for old in directory.glob("*.hps"):
        if old.name not in files:
            if old.is_dir():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.unlink(missing_ok=True)
