"""Ray, or one clear message where it is not installed. Its types cover too little of what is used here."""

from __future__ import annotations

import importlib
from typing import Any

from heterps.errors import InvalidInput

try:
    ray: Any = importlib.import_module("ray")
except ImportError:
    raise InvalidInput("engine ray needs Ray: pip install heterps[ray]") from None

exceptions: Any = importlib.import_module("ray.exceptions")
groups: Any = importlib.import_module("ray.util.placement_group")
_cloudpickle: Any = importlib.import_module("ray.cloudpickle")
strategies: Any = importlib.import_module("ray.util.scheduling_strategies")


CONTROL, SERVE = "control", "serve"
"""Threads of an actor beside the one that computes."""


def actor(kind: type, **options: Any) -> Any:
    """A class whose objects live in processes of their own; `concurrency_groups` have threads of their own there."""
    return ray.remote(**options)(kind)


def node_host() -> str:
    """The address of this machine in the cluster."""
    return str(ray.util.get_node_ip_address())


def pickled(value: Any) -> bytes:
    """Anything, functions and classes included, for another process of the cluster."""
    return bytes(_cloudpickle.dumps(value))


def unpickled(data: bytes) -> Any:
    """The inverse of `pickled`: for what came from a process of the cluster alone."""
    return _cloudpickle.loads(data)
