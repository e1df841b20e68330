"""A parameter server as an actor. It lies here, as its process then starts without PyTorch, in a fifth of the time."""

from __future__ import annotations

import importlib
import threading
from typing import Any

from heterps.ps.keys import Keys
from heterps.ps.server import Server


class ShardActor:
    """A parameter server in a process of its own, with one shard of every table."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def open(self) -> str:
        """Starts serving, at an address of this machine that other machines of the cluster reach; says which."""
        ray_util: Any = importlib.import_module("ray.util")  # an actor has it; who only uses a server need not

        self._server = Server(f"tcp://{ray_util.get_node_ip_address()}:*", self._keys).start()
        return self._server.addresses[0]

    def serve(self) -> None:
        """Never returns: whoever waits for it learns at once when the process dies. For the thread SERVE."""
        threading.Event().wait()

    def beat(self) -> int:
        """Answers that it is there, in the thread CONTROL."""
        return 0
