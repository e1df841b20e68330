"""The jobs of a Ray cluster: named actors, one for each, that outlive the command which started them."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from heterps.errors import HeterPSError, did_you_mean
from heterps.runtime.cluster._ray import CONTROL, exceptions, ray

NAMESPACE = "heterps"
ANSWER_S = 15.0
"""Seconds that a job has to say how it is (`Limits.frozen_s` is as long)."""


REACH_S = 10.0
"""Seconds that a cluster's head has to accept a connection."""


class NoSuchJob(HeterPSError):
    """There is no job of that name, or no cluster."""


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Joins a running cluster: the one at an address, or the one of this machine."""
    if ray.is_initialized():
        yield
        return
    try:
        _reach(address)
        ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError, exceptions.RayError) as error:
        where = f"at {address}" if address not in (None, "auto") else "on this machine: give its --address"
        why = str(error).strip().splitlines()[0]
        if os.environ.get("RAY_AUTH_MODE") == "token":
            why += "; RAY_AUTH_MODE=token: it must be the cluster's token"
        raise NoSuchJob(f"no Ray cluster {where} ({why})") from None
    try:
        yield
    finally:
        ray.shutdown()


def _reach(address: str | None) -> None:
    """Fails at once where nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()


def jobs() -> dict[str, Any]:
    """The coordinators of all jobs, by name."""
    found = {}
    for entry in ray.util.list_named_actors(all_namespaces=True):
        if entry["namespace"] == NAMESPACE:
            try:
                found[str(entry["name"])] = ray.get_actor(entry["name"], namespace=NAMESPACE)
            except ValueError:  # it has just ended
                continue
    return dict(sorted(found.items()))


def job(name: str) -> Any:
    """The coordinator of a job."""
    there = jobs()
    if name not in there:
        running = f"running are {', '.join(there)}" if there else "none is running"
        raise NoSuchJob(f"no job {name!r} on this cluster; {running}.{did_you_mean(name, there)}")
    return there[name]


def ask(actor: Any, method: str, *args: Any, within_s: float = ANSWER_S) -> Any:
    """What a coordinator answers, in a thread beside the one that works; None if it does not, or is gone."""
    try:
        return ray.get(getattr(actor, method).options(concurrency_group=CONTROL).remote(*args), timeout=within_s)
    except (exceptions.GetTimeoutError, exceptions.RayActorError):
        return None


def running_in(directory: str, name: str, *, start_s: float) -> Any | None:
    """The coordinator that keeps its checkpoints in a directory, if one does.

    One of the same name that gives no answer may be it: Ray makes it anew, which takes up to `start_s` seconds.
    """
    for other, actor in jobs().items():
        found = ask(actor, "directory")
        if found is None and other == name:
            ray.kill(actor, no_restart=False)
            found = ask(actor, "directory", within_s=start_s)
        if found == directory:
            return actor
    return None


def begin(name: str, make: Callable[[str], Any]) -> Any:
    """A new coordinator, by `make`, under the name given or one with a number behind it if there is such a job."""
    for number in count(1):
        unique = name if number == 1 else f"{name}-{number}"
        if unique in jobs():
            continue
        try:
            return make(unique)
        except ValueError:  # somebody was faster
            continue
    raise AssertionError
