"""Counters as gradients: a push is never applied twice, and never lost once it is acknowledged and in a checkpoint."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps.models import Chain
from heterps.ps import Client
from heterps.runtime import Checkpoints, Settings
from heterps.runtime.cluster import replica
from tests.cluster import inprocess
from tests.cluster.counting import BATCH, batches, model
from tests.cluster.driver import Spec
from tests.cluster.faults import assert_equal, counts, unbroken
from tests.cluster.jobs import Fault, Faulty
from tests.ps.proxy import Proxy
from tests.runtime.chains import IDS
from tests.runtime.plain import rows_of, sgd
from tests.runtime.plans import make_plan

STEPS = 48


def run_here(path: Path, *, steps: int, replicas: list[int], shards: int) -> torch.Tensor:
    """How often each sample was used by a run in this process, without shared memory."""
    plan = make_plan(model(), (2,), units=replicas)
    chain, _, _ = inprocess.run_here(
        model, batches(STEPS), plan, steps=steps, micro_batches=4, shards=shards, replicas=replicas, path=path,
        optimizer=sgd, share=False,
    )  # fmt: skip
    return counts(chain, STEPS * BATCH)


@pytest.mark.parametrize(("replicas", "shards"), [([1, 1], 1), ([2, 1], 2), ([3, 2], 3)], ids=str)
def test_each_sample_counts_once_an_epoch(tmp_path: Path, replicas: list[int], shards: int):
    """An epoch and a half."""
    found = run_here(tmp_path, steps=STEPS + STEPS // 2, replicas=replicas, shards=shards)
    half = STEPS * BATCH // 2
    assert torch.equal(found[:half], torch.full((half,), 2.0))
    assert torch.equal(found[half:-1], torch.ones(half))
    assert found[-1] == 0


class Unlucky(replica.Replica):
    """A replica whose connections to the servers break again and again."""

    proxies: list[Proxy]
    rng: random.Random

    def connect(self, addresses: Mapping[Any, Any], shards: Sequence[str]) -> None:
        budgets = [[self.rng.randrange(500, 40_000) for _ in range(4)] for _ in shards]
        own = [Proxy(address, cuts) for address, cuts in zip(shards, budgets, strict=True)]
        self.proxies += own
        super().connect(addresses, [proxy.address for proxy in own])


@pytest.fixture
def unlucky(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Proxy]]:
    """The relays of all replicas of the test; their clients ask again soon."""
    Unlucky.proxies, Unlucky.rng = made, _ = [], random.Random(3)

    def hasty(addresses: Sequence[str], keys: Any, **options: Any) -> Client:
        return Client(addresses, keys, **{**options, "timeout_s": 0.3, "retries": 500})

    monkeypatch.setattr(replica, "Client", hasty)
    monkeypatch.setattr(inprocess, "Replica", Unlucky)
    yield made
    for proxy in made:
        proxy.close()


def test_pushes_are_applied_once_over_connections_that_break(tmp_path: Path, unlucky: list[Proxy]):
    """A push, its acknowledgement, or half of either is lost: whoever sent it does so again."""
    found = run_here(tmp_path, steps=STEPS, replicas=[2, 1], shards=2)
    assert sum(proxy.cuts for proxy in unlucky) >= 8
    assert torch.equal(found[:-1], torch.ones(STEPS * BATCH))
    assert found[-1] == 0


def faulty(folder: str, faults: tuple[Fault, ...]) -> tuple[Any, Any]:
    return model(), Faulty(batches(STEPS), Path(folder), faults)


@pytest.mark.usefixtures("cluster")
def test_killed_and_resumed_on_other_numbers(tmp_path: Path):
    """Half of an epoch with a kill: what is in the checkpoint was applied once, all of it. Then the other half.

    Weights, rows and losses are those of an unbroken run: to the last bit on the same numbers, closely on others.
    """
    from heterps.runtime.cluster.engine import train_on_ray

    ones, half = torch.ones(STEPS * BATCH // 2), STEPS * BATCH // 2
    faults, losses = (("kill-shard", 17),), []
    for steps, replicas, shards in ((STEPS // 2, [1, 1], 2), (STEPS, [1, 2], 1)):
        chain = model()
        settings = Settings(
            steps=steps, micro_batches=4, optimizer=sgd,
            checkpoints=Checkpoints(path=tmp_path / "checkpoints", every_steps=5),
        )  # fmt: skip
        losses += train_on_ray(
            chain, partial(faulty, str(tmp_path), faults), make_plan(chain, (2,), units=replicas), settings,
            replicas=replicas, shards=shards,
        ).losses  # fmt: skip
        found = counts(chain, STEPS * BATCH)
        assert torch.equal(found[:half], ones)
        assert torch.equal(found[half:-1], ones if steps == STEPS else torch.zeros(half))
        spec = Spec(address="", checkpoints="", steps=steps, replicas=(1, 1))
        whole, expected = unbroken(tmp_path / f"unbroken {steps}", spec)
        if steps == STEPS:
            assert_close(chain, whole)
            assert losses == pytest.approx(expected, rel=1e-4)
        else:
            assert_equal(chain, whole)
            assert losses == expected
    assert len(list(tmp_path.glob("fault-*"))) == len(faults)


def assert_close(one: Chain, two: Chain) -> None:
    """Dense weights and rows."""
    for name, weight in two.state_dict().items():
        torch.testing.assert_close(one.state_dict()[name], weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(rows_of(one, "rows", IDS), rows_of(two, "rows", IDS), rtol=1e-4, atol=1e-6)
