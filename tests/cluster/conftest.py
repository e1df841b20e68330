"""A Ray cluster of two machines in processes of this one, for all tests of a session; nothing of it is left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.cluster.jobs import PATIENT, of_cluster, parent, processes, wait_for
from tests.cluster.machines import make_cluster

ENDS_S = 30.0
"""Within which what a test has ended is gone; what is there then is of one that failed."""


def own_raylets() -> list[int]:
    """Ray nodes that this process started; others may run here too."""
    return [pid for pid in processes("raylet/raylet") if parent(pid) == os.getpid()]


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Two nodes of three (nominal) cores, and this process connected to them."""
    ray = pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")
    made = make_cluster(num_cpus=3)
    try:
        made.add_node(num_cpus=3)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield
    finally:
        ray.shutdown()
        made.shutdown()
        assert wait_for(lambda: not own_raylets()), "raylets are left"


@pytest.fixture(autouse=True)
def quiet(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the cluster, a test finds nothing of an earlier one, and runs that name no limits have patience."""
    if "cluster" not in request.fixturenames:
        return
    request.getfixturevalue("cluster")
    from heterps.runtime.cluster import engine, registry

    monkeypatch.setattr(engine, "Limits", lambda: PATIENT)
    if not wait_for(lambda: not registry.jobs() and not left(), seconds=ENDS_S):
        for job in registry.jobs().values():
            engine.dismiss(job)
        for pid in left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def left() -> list[int]:
    """Processes of runs on this process's cluster."""
    titles = ("ray::CoordinatorActor", "ray::ReplicaActor", "ray::ShardActor")
    return [pid for title in titles for pid in of_cluster(os.getpid(), title)]
