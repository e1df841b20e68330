"""Runs on a real Ray cluster: processes, keys and sockets as in production, and processes that die."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")

from heterps.errors import Infeasible
from heterps.models import Chain
from heterps.runtime import Checkpoints, Result, Settings, StageFailed
from heterps.runtime.cluster.engine import train_on_ray
from heterps.runtime.cluster.policy import Limits
from tests.cluster.inprocess import run_here
from tests.cluster.jobs import PATIENT, Fault, broken_model, faulty_model, mistaken_model, of_cluster, wait_for
from tests.runtime.plain import rows_of
from tests.runtime.plans import make_plan
from tests.runtime.reference import ROWS, STEPS, assert_same, batches, build, dense_optimizer

pytestmark = pytest.mark.usefixtures("cluster")
LIMITS = Limits(tries=10, frozen_s=8.0, boot_s=20.0, pause_s=0.1)
"""Of a run with frozen processes, which it shall find soon. It goes on all the same where others but seem so."""


def run(
    path: Path, name: str, cuts: tuple[int, ...], replicas: list[int], shards: int, faults: tuple[Fault, ...]
) -> tuple[Chain, Result]:  # fmt: skip
    chain = build(name)
    settings = Settings(
        steps=STEPS, micro_batches=3, optimizer=dense_optimizer,
        checkpoints=Checkpoints(path=path / "checkpoints", every_steps=10),
    )  # fmt: skip
    plan = make_plan(chain, cuts, units=replicas)
    factory = partial(faulty_model, name, str(path), faults)
    result = train_on_ray(chain, factory, plan, settings, replicas=replicas, shards=shards, limits=LIMITS)
    return chain, result


def weights(chain: Chain) -> dict[str, torch.Tensor]:
    return {**chain.state_dict(), **{f"rows of {name}": rows_of(chain, name, ROWS) for name in chain.tables}}


def assert_equal(one: Chain, two: Chain) -> None:
    """To the last bit."""
    ours, theirs = weights(one), weights(two)
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name


def test_faults(tmp_path: Path):
    """A worker is frozen as it starts, one is killed, and one is frozen: the weights are those of a run without."""
    name, cuts, replicas, shards = "ctrdnn", (2,), [2, 1], 1
    unbroken, losses, _ = run_here(
        lambda: build(name), batches(name), make_plan(build(name), cuts, units=replicas), steps=STEPS, micro_batches=3,
        replicas=replicas, shards=shards, path=tmp_path / "unbroken", optimizer=dense_optimizer,
    )  # fmt: skip
    assert_same(name, unbroken, losses)
    faults = (("freeze", -1), ("kill", 14), ("freeze", 35))  # others, and machines, in test_faults.py
    broken, result = run(tmp_path, name, cuts, replicas, shards, faults)
    assert len(list(tmp_path.glob("fault-*"))) == len(faults)
    assert result.losses == losses
    assert_equal(broken, unbroken)
    assert {path.name for path in (tmp_path / "checkpoints").glob(".[!.]*")} <= {".latest"}
    assert wait_for(lambda: not of_cluster(os.getpid(), "ray::ReplicaActor"))


def test_what_would_fail_again_is_told_at_once(tmp_path: Path):
    """A layer that raises, in the words of engine local."""
    chain = build("ctrdnn")
    settings = Settings(steps=3, checkpoints=Checkpoints(path=tmp_path))
    with pytest.raises(StageFailed, match=r"stage 0 replica 0 failed: ZeroDivisionError.*in layer 'fc1'"):
        train_on_ray(chain, broken_model, make_plan(chain), settings, shards=1, limits=PATIENT)


def test_a_mistake_in_the_users_code_is_told_at_once(tmp_path: Path):
    """Before any layer runs."""
    chain = build("ctrdnn")
    settings = Settings(steps=3, checkpoints=Checkpoints(path=tmp_path / "checkpoints"))
    with pytest.raises(StageFailed, match=r"^stage 0 replica 0 failed: AttributeError: .*no_such_model"):
        train_on_ray(
            chain, partial(mistaken_model, str(tmp_path)), make_plan(chain), settings, shards=1, limits=PATIENT
        )
    assert len(list(tmp_path.glob("tried-*"))) == 1


def test_a_plan_that_is_too_large_is_refused(tmp_path: Path):
    chain = build("ctrdnn")
    settings = Settings(steps=3, checkpoints=Checkpoints(path=tmp_path))
    with pytest.raises(Infeasible, match=r"CPU: 101 needed .*, 6 there"):
        train_on_ray(chain, broken_model, make_plan(chain, units=100), settings, shards=1, limits=PATIENT)
