"""Pulls that are asked for before the step is over that they wait for."""

from __future__ import annotations

import dataclasses
import tempfile
from contextlib import ExitStack

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps.errors import InvalidInput
from heterps.ps import hosting, waiting
from heterps.ps.client import Client
from heterps.ps.errors import ServerError, ServerTimeout
from heterps.ps.server import Server
from heterps.store import SparseTable
from heterps.store.config import Optimizer, TableConfig
from tests.ps.running import PATIENCE_S, until
from tests.ps.test_gathering import CONFIG, LARGE, NONE, SMALL, first, ones, replicas  # noqa: F401

NATIVE = TableConfig(name="t", dim=4, optimizer=Optimizer(name="adagrad", lr=0.1), init_scale=1.0)


@pytest.mark.parametrize("ids", [SMALL, LARGE], ids=["messages", "shared memory"])
@pytest.mark.parametrize("shards", [1, 2])
def test_rows_come_when_the_step_is_over(replicas, ids, shards):  # noqa: F811
    (one, two), _ = replicas(2, shards)
    early = [table.pull_after(ids, 0) for table in (one, two)]
    later = two.pull_after(ids, 1)
    one.push_part(ids, ones(ids), step=0, part=0, parts=2)
    with pytest.raises(ServerTimeout):
        one.pull_after(ids, 0).rows(0.2)
    np.testing.assert_array_equal(one.pull(ids), first(ids))  # other pulls wait for nothing
    two.push_part(ids, ones(ids), step=0, part=1, parts=2)
    for coming in early:
        np.testing.assert_array_equal(coming.rows(PATIENCE_S), first(ids) - 2)
    np.testing.assert_array_equal(one.pull_after(ids, 0).rows(PATIENCE_S), first(ids) - 2)  # it is over already
    two.push_part(ids, ones(ids), step=1, part=1, parts=2)
    one.push_part(NONE, ones(NONE), step=1, part=0, parts=2)
    np.testing.assert_array_equal(later.rows(PATIENCE_S), first(ids) - 3)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32), shards=st.integers(1, 2), clients=st.integers(2, 4), tracks=st.booleans(),
    desks=st.booleans(),
)  # fmt: skip
def test_training_ahead_is_training(seed: int, shards: int, clients: int, tracks: bool, desks: bool):
    """Clients that ask for each step's rows before the one before it is over get what one table gives.

    At desks or by messages, with the ids looked at again for the push or not.
    """
    source = np.random.default_rng(seed)
    config = dataclasses.replace(NATIVE, counts=tracks)
    local = SparseTable.from_config(config)
    steps = [[source.integers(0, 5000, source.integers(1, 3000)) for _ in range(clients)] for _ in range(5)]
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        servers = [stack.enter_context(Server(f"ipc://{directory}/{k}").start()) for k in range(shards)]
        opened = [stack.enter_context(Client([one.addresses[0] for one in servers])) for _ in range(clients)]
        tables = [client.table(config) for client in opened]
        for number, table in enumerate(tables if desks else []):
            table.meet(step=0, own=[number], parts=clients)
        coming = [None] * clients
        for number, batch in enumerate(steps):
            found = [
                table.pull(ids) if asked is None else asked.rows(PATIENCE_S)
                for table, ids, asked in zip(tables, batch, coming, strict=True)
            ]
            for ids, rows in zip(batch, found, strict=True):
                np.testing.assert_allclose(rows, local.pull(ids), rtol=1e-5, atol=1e-6)
            known = [one if source.random() < 0.8 else None for one in coming]
            if number + 1 < len(steps):
                coming = [table.pull_after(ids, number) for table, ids in zip(tables, steps[number + 1], strict=True)]
            grads = [np.cos(rows) for rows in found]
            for part in source.permutation(clients):
                tables[part].push_part(
                    batch[part], grads[part], step=number, part=int(part), parts=clients, coming=known[part]
                )  # fmt: skip
            local.push(np.concatenate(batch), np.concatenate(grads))
        for table in tables:
            table.wait()
        every = np.arange(5000)
        rows = tables[0].pull(every, create=False)
        np.testing.assert_allclose(rows, local.pull(every, create=False), rtol=1e-5, atol=1e-6)
        assert tables[0].stats().rows == local.stats().rows
        assert tables[0].stats().hits == local.stats().hits
        if tracks:
            np.testing.assert_array_equal(tables[0].counts(every), local.counts(every))


def test_they_are_given_up_with_the_step(replicas, tmp_path):  # noqa: F811
    (one, two), _ = replicas(2)
    one.pull(SMALL)
    one.save(tmp_path / "snapshot")
    for give_up in (two.abandon, lambda: two.load(tmp_path / "snapshot")):
        coming = one.pull_after(SMALL, 7)
        one.pull(SMALL)  # it has come
        give_up()
        with pytest.raises(ServerError, match="after step 7 was abandoned"):
            coming.rows(PATIENCE_S)
    np.testing.assert_array_equal(one.pull(SMALL), first(SMALL))


def test_only_so_many_wait(replicas, monkeypatch):  # noqa: F811
    (one,), _ = replicas(1)
    monkeypatch.setattr(waiting, "MAX_PULLS", 2)
    coming = [one.pull_after(SMALL, 0) for _ in range(3)]
    with pytest.raises(InvalidInput, match="2 pulls wait"):
        coming[2].rows(PATIENCE_S)
    monkeypatch.setattr(waiting, "MAX_PULLS", 100)
    monkeypatch.setattr(hosting, "HELD_BYTES", 2 * SMALL.nbytes)
    with pytest.raises(InvalidInput, match="wait for others already"):
        one.pull_after(SMALL, 0).rows(PATIENCE_S)
    monkeypatch.undo()
    one.push_part(SMALL, ones(SMALL), step=0, part=0, parts=1)
    for asked in coming[:2]:
        np.testing.assert_array_equal(asked.rows(PATIENCE_S), first(SMALL) - 1)


def test_a_client_that_waits_for_rows_and_goes_hurts_nobody(replicas):  # noqa: F811
    (one, two), servers = replicas(2)
    with Client([servers[0].addresses[0]]) as third:
        third.table(CONFIG).pull_after(LARGE, 0)
        until(lambda: servers[0]._host.tables["t"].waiting.held_bytes, what="the pull")
    one.push_part(LARGE, ones(LARGE), step=0, part=0, parts=1).wait(PATIENCE_S)
    np.testing.assert_array_equal(two.pull(LARGE), first(LARGE) - 1)
    assert servers[0]._host.tables["t"].waiting.held_bytes == 0


def test_a_server_that_restarts_knows_what_is_over(tmp_path):
    """A step that was applied before is not waited for again."""
    address, saved = f"ipc://{tmp_path}/socket", tmp_path / "saved"
    with Client([address], timeout_s=1.0, retries=150) as client:
        with Server(address, save_dir=saved).start():
            table = client.table(NATIVE)
            table.push_part(SMALL, ones(SMALL), step=4, part=0, parts=1).wait(PATIENCE_S)
            rows = table.pull(SMALL)
        with Server(address, save_dir=saved).start():
            np.testing.assert_array_equal(table.pull_after(SMALL, 4).rows(PATIENCE_S), rows)
