"""Tables of servers whose processes know the storage of tests by importing this, and start soon: it is little."""

from __future__ import annotations

from pathlib import Path

from heterps.store import SparseTable
from heterps.store.config import TableConfig
from tests import bucket
from tests.ps.running import until


def make_plain(config: TableConfig) -> SparseTable:
    return SparseTable.from_config(config)


def make_slow(config: TableConfig) -> SparseTable:
    """The same, and uploads stop halfway for as long as a file is there."""
    marker = Path(config.name)

    def hook(verb: str, path: str) -> None:
        if verb == "put" and marker.exists():
            (marker.parent / "halfway").write_text(path)
            until(lambda: not marker.exists(), what="the test to go on")

    bucket.before.append(hook)
    return make_plain(config)
