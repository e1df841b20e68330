"""Servers for the tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from heterps.ps.client import Client
from heterps.ps.server import Server
from tests.ps.fakes import make_fake

Connect = Callable[..., tuple[Client, list[Server]]]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """connect(shards=1, server=Server, options={}, **client options): a client, and its servers in this process."""
    opened: list[Any] = []

    def make(
        shards: int = 1, *, server: type[Server] = Server, options: dict[str, Any] | None = None, **client: Any
    ) -> tuple[Client, list[Server]]:
        first = len(opened)
        addresses = [f"ipc://{tmp_path}/sockets/{first + k}" for k in range(shards)]
        servers = [server(address, make_table=make_fake, **(options or {})).start() for address in addresses]
        opened.extend(servers)
        opened.append(Client(addresses, **{"timeout_s": 5.0, "retries": 30, **client}))
        return opened[-1], servers

    yield make
    for end in reversed(opened):
        end.close()
