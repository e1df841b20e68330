"""A Ray cluster of two machines in processes of this one, for all tests of a session; nothing of it is left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.cluster.jobs import parent, processes, wait_for


def own_raylets() -> list[int]:
    """Ray nodes that this process started; others may run here too."""
    return [pid for pid in processes("raylet/raylet") if parent(pid) == os.getpid()]


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Two nodes of three (nominal) cores, and this process connected to them."""
    ray = pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "include_dashboard": False})
    try:
        made.add_node(num_cpus=3)
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield
    finally:
        ray.shutdown()
        made.shutdown()
        assert wait_for(lambda: not own_raylets()), "raylets are left"
