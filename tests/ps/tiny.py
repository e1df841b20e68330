"""Every array crosses in shared memory, however small it is: for tests whose arrays are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from heterps.store import SparseTable
from heterps.store.config import TableConfig

MAKE = "tests.ps.tiny:make_table"
_LASTING: list[Any] = []


@contextmanager
def tiny_blocks() -> Iterator[None]:
    """In this process, while it lasts."""
    with (
        patch("heterps.ps.client.LEAST_BYTES", 1),
        patch("heterps.ps.channel.LEAST_BYTES", 1),
        patch("heterps.ps.neighbours.LEAST_BYTES", 1),
        patch("heterps.ps.wire.LEAST_BYTES", 1),
        patch("heterps.ps.wire.INLINE_BYTES", 0),
    ):
        yield


def make_table(config: TableConfig) -> Any:
    """A native table of a server, which from its first table on sends all rows in blocks."""
    if not _LASTING:
        _LASTING.append(tiny_blocks())
        _LASTING[0].__enter__()
    return SparseTable.from_config(config)
