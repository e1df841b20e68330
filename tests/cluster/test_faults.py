"""Processes are killed and frozen, machines lost and cut off, at random moments: training goes on, nothing is lost."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")

from heterps.runtime import Settings
from heterps.runtime.cluster.attempt import Attempt, _elsewhere
from heterps.runtime.cluster.layout import lay_out
from heterps.runtime.cluster.policy import Limits
from heterps.runtime.cluster.work import Work
from tests.cluster.counting import factory, model
from tests.cluster.faults import KINDS, RECOVERS_S, WITH_CUTS, survive, table
from tests.cluster.jobs import PATIENCE_S
from tests.cluster.machines import Hosts, Nodes, namespaces_allowed
from tests.runtime.plans import make_plan

SEED = 7
FEW = (1, 1)
"""Replicas of short runs: each attempt starts all its processes anew.

Workers are killed and frozen in test_ray.py, shards in test_counters.py, coordinators in test_operations.py.
"""


def test_a_machine_dies(tmp_path: Path):
    """On Ray nodes in processes of this machine."""
    with Nodes() as nodes:
        survive(nodes, tmp_path, ("node",), seed=SEED, replicas=FEW)


def test_a_host_is_cut_off_and_comes_back(tmp_path: Path):
    """On hosts with networks of their own; the processes of the one that was cut off have old keys, and end."""
    if not namespaces_allowed():
        pytest.skip("network namespaces need root and the kernel's leave")
    with Hosts() as hosts:
        survive(hosts, tmp_path, ("cut",), seed=SEED, replicas=FEW)


@pytest.mark.usefixtures("cluster")
def test_an_attempt_takes_no_room_on_machines_to_avoid():
    """Each of the two, in turn. Of several ids Ray reads blanks between them as parts of an id."""
    from heterps.runtime.cluster._ray import groups, ray

    layout = lay_out(make_plan(model(), (2,)), tables=2, shards=1)
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    for avoid in [(node,) for node in nodes]:
        work = Work(factory=partial(factory, None, 1), settings=Settings(steps=1), layout=layout, avoid=avoid)
        attempt = Attempt(work, number=1, job="avoids", limits=Limits())
        group = attempt._room(layout.demands({}), PATIENCE_S, threading.Event(), lambda: None)
        try:
            taken = set(groups.placement_group_table(group)["bundles_to_node_id"].values())
            assert taken <= set(nodes) - set(avoid)
        finally:
            groups.remove_placement_group(group)
    assert _elsewhere(("a", "b")) == {"ray.io/node-id": "!in(a,b)"}


@pytest.mark.soak
def test_fifty_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """All kinds in any order; without leave for network namespaces, all but cuts."""
    allowed = namespaces_allowed()
    kinds = list((WITH_CUTS if allowed else KINDS) * 10)[:50]
    random.Random(SEED).shuffle(kinds)
    with Hosts() if allowed else Nodes() as machines:
        faults = survive(machines, tmp_path, tuple(kinds), seed=SEED, within_s=RECOVERS_S)
    with capsys.disabled():
        print(f"\n{table(faults)}\nevery sample once, losses, weights and rows as without faults")  # noqa: T201
    assert len(faults) == 50
