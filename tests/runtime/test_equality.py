"""Any plan gives the loss curve and the weights of plain PyTorch."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from heterps.models import zoo
from heterps.plan import Plan
from heterps.ps import Client, Server
from heterps.runtime import Checkpoints, Result, train
from tests.runtime.plans import make_plan, random_plan, shape
from tests.runtime.reference import MODELS, STEPS, assert_same, batches, build, dense_optimizer

PLANS = 20
MICRO_BATCHES = (1, 2, 3, 4, 5, 7)
"""Most do not divide the batch."""
Connect = Callable[[int], Client]
every_model = pytest.mark.parametrize("name", MODELS)


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """connect(shards): a client of new servers."""
    with ExitStack() as stack:

        def make(shards: int) -> Client:
            folder = tmp_path / f"sockets-{random.randrange(10**6)}"
            addresses = [f"ipc://{folder}/{shard}" for shard in range(shards)]
            for address in addresses:
                stack.callback(Server(address).start().close)
            return stack.enter_context(Client(addresses, timeout_s=20.0))

        yield make


def run(name: str, plan: Plan, micro_batches: int, **settings: Any) -> tuple[Any, Result]:
    chain = build(name)
    settings = {"optimizer": dense_optimizer, "steps": STEPS, **settings}
    return chain, train(chain, batches(name), plan, micro_batches=micro_batches, **settings)


def drawn(name: str, number: int) -> tuple[Plan, int]:
    rng = random.Random(f"{name} {number}")
    return random_plan(build(name), rng), rng.choice(MICRO_BATCHES)


def test_every_model_is_tested():
    assert set(MODELS) == set(zoo.names())


def test_the_plans_differ():
    """Every number of stages, and plans of 1, 2 and 3 units."""
    plans = [drawn(name, number)[0] for name in MODELS for number in range(PLANS)]
    assert {len(plan.stages) for plan in plans} == {1, 2, 3, 4}
    assert {stage.units for plan in plans for stage in plan.stages} == {1, 2, 3}
    assert len({shape(plan) for plan in plans}) > 100


@every_model
@pytest.mark.parametrize("number", range(PLANS))
def test_a_plan_gives_what_plain_pytorch_gives(name: str, number: int):
    plan, micro_batches = drawn(name, number)
    chain, result = run(name, plan, micro_batches)
    assert result.steps == STEPS
    assert result.stopped == "done"
    assert_same(name, chain, result.losses)


def test_more_micro_batches_than_samples():
    """A batch is cut into single samples."""
    chain, result = run("ctrdnn", make_plan(build("ctrdnn"), (1, 3)), 33)
    assert_same("ctrdnn", chain, result.losses)


@every_model
@pytest.mark.parametrize("number", range(3))
def test_a_run_resumed_with_another_plan(name: str, number: int, tmp_path: Path):
    checkpoints = Checkpoints(path=tmp_path, every_steps=10)
    plan, micro_batches = drawn(name, number)
    _, first = run(name, plan, micro_batches, steps=25, checkpoints=checkpoints)
    plan, micro_batches = drawn(name, 100 + number)
    chain, second = run(name, plan, micro_batches, checkpoints=checkpoints)
    assert (first.steps, second.steps) == (25, STEPS)
    assert_same(name, chain, first.losses + second.losses)


@every_model
@pytest.mark.parametrize("shards", [1, 2])
def test_tables_on_parameter_servers(name: str, shards: int, connect: Connect):
    plan, micro_batches = drawn(name, 200 + shards)
    chain, result = run(name, plan, micro_batches, client=connect(shards))
    assert_same(name, chain, result.losses)


@pytest.mark.parametrize("name", ["ctrdnn", "matchnet", "nce"])
@pytest.mark.parametrize("shards", [(1, 2), (2, None), (None, 2)], ids=str)
def test_tables_move_between_servers_and_process(
    name: str, shards: tuple[int | None, int | None], connect: Connect, tmp_path: Path
):
    """A run is resumed with its tables elsewhere; deltas are among its checkpoints."""
    checkpoints = Checkpoints(path=tmp_path / "checkpoints", every_steps=8)
    losses = []
    for steps, count in zip((25, STEPS), shards, strict=True):
        plan, micro_batches = drawn(name, 300 + steps)
        client = None if count is None else connect(count)
        chain, result = run(name, plan, micro_batches, steps=steps, checkpoints=checkpoints, client=client)
        losses += result.losses
    assert_same(name, chain, losses)
