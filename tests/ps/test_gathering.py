"""One push of several clients: applied once, whole, in order, whoever comes first, lives or dies."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest

from heterps.errors import InvalidInput
from heterps.ps import gathering, hosting, remote
from heterps.ps.client import Client
from heterps.ps.errors import ServerError, ServerTimeout
from heterps.ps.gathering import Gathering, Part
from heterps.ps.server import Server
from heterps.store import SparseTable
from heterps.store.config import Optimizer, TableConfig
from tests.ps.clock import moved_by_answers
from tests.ps.fakes import FakeTable, make_fake
from tests.ps.running import FAKE, PATIENCE_S, ROOT, Process, have_patience, lasting_address, until
from tests.ps.test_faults import Forgetful

CONFIG = TableConfig(name="t", dim=4, optimizer=Optimizer(name="sgd", lr=1.0), init_scale=1.0)
SMALL, LARGE = np.arange(40), np.arange(4000)
"""Ids whose gradients travel in messages, and those whose cross in shared memory."""
NONE = np.empty(0, np.int64)


def first(ids):
    return FakeTable(CONFIG).pull(ids)


def ones(ids):
    return np.ones((len(ids), 4), np.float32)


@pytest.fixture
def replicas(connect):
    """replicas(n, shards=1, **client options): tables of n clients of the same servers, and the servers."""
    opened = []

    def make(count, shards=1, *, server=Server, options=None, config=CONFIG, **given):
        client, servers = connect(shards, server=server, options=options, **given)
        addresses = [one.addresses[0] for one in servers]
        opened.extend(Client(addresses, **{"timeout_s": 5.0, "retries": 30, **given}) for _ in range(count - 1))
        return [one.table(config) for one in (client, *opened)], servers

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_parts_are_one_push_in_the_order_of_their_numbers(tmp_path, shards, order):
    """Bit for bit what one push of all ids gives, with an optimizer that is not linear."""
    config = TableConfig(name="t", dim=4, optimizer=Optimizer(name="adagrad", lr=0.1))
    source = np.random.default_rng(3)
    ids = [source.integers(0, 3000, size) for size in (5000, 4000, 3000)]
    grads = [source.standard_normal((len(one), 4)).astype(np.float32) for one in ids]
    sums = [remote.Recent().batch(one, 1) for one in ids]
    local = SparseTable.from_config(config)
    summed = [np.empty((len(batch.ids), 4), np.float32) for batch in sums]
    for batch, given, out in zip(sums, grads, summed, strict=True):
        batch.sum_into(given, [out])
    for _ in range(2):
        local.push(np.concatenate([batch.ids for batch in sums]), np.concatenate(summed))
    servers = [Server(f"ipc://{tmp_path}/sockets/{k}").start() for k in range(shards)]
    clients = [Client([server.addresses[0] for server in servers]) for _ in range(3)]
    try:
        tables = [client.table(config) for client in clients]
        for step in (4, 9):
            tickets = []
            for k in order:
                tickets.append(tables[k].push_part(ids[k], grads[k], step=step, part=k, parts=3))
                tables[k].pull(ids[k][:1])  # it is there before the next one
            for ticket in tickets:
                ticket.wait(PATIENCE_S)
        everything = np.arange(3000)
        np.testing.assert_array_equal(tables[0].pull(everything), local.pull(everything))
        assert tables[0].stats().steps == 2
    finally:
        for end in (*clients, *servers):
            end.close()


@pytest.mark.parametrize("ids", [SMALL, LARGE], ids=["messages", "shared memory"])
def test_nothing_waits_behind_a_part_that_is_held(replicas, ids):
    """More of them than may be on the way, and twice what a window holds; steps that complete later apply in order."""
    (one, two), _ = replicas(2, options={"window": 8})
    other = one._client.table(TableConfig(name="other", dim=4, optimizer=CONFIG.optimizer, init_scale=1.0))
    tickets = [one.push_part(ids, (k + 1) * ones(ids), step=k, part=0, parts=2) for k in range(20)]
    for _ in range(3):
        np.testing.assert_array_equal(one.pull(ids), first(ids))
        other.push(ids, ones(ids))
        other.wait()
        one.push(ids[:10], ones(ids[:10]) * 0)
    assert not any(ticket.done for ticket in tickets)
    for k in range(20):
        if k % 3 == 0:
            two.push_part(NONE, ones(NONE), step=k, part=1, parts=2)
        else:
            two.push_part(ids, ones(ids), step=k, part=1, parts=2)
        if k == 10:
            one.wait_for(9)
            assert all(ticket.done for ticket in tickets[:10])
    one.wait()
    two.wait()
    expected = first(ids) - sum(range(1, 21)) - sum(k % 3 != 0 for k in range(20))
    np.testing.assert_allclose(two.pull(ids), expected, atol=1e-4)
    assert one.stats().steps == 20 + 3
    for table in (one, two):
        assert table._client._arena.held_bytes == 0


def test_steps_are_applied_in_their_order(replicas):
    """The rate of each step is its own; a step that is complete waits for the one before."""
    (one, two), (server,) = replicas(2)
    hosted = server._host.tables["t"].table
    later = one.push_part(SMALL, ones(SMALL), step=1, part=0, parts=1, lr=4.0)
    later.wait(PATIENCE_S)  # it is alone
    one.push_part(SMALL, ones(SMALL), step=5, part=0, parts=2, lr=2.0)
    one.stats()  # answered behind it: the part is there
    last = two.push_part(SMALL, ones(SMALL), step=6, part=0, parts=1, lr=3.0)
    with pytest.raises(ServerTimeout, match="step 6"):
        last.wait(0.2)
    assert hosted.lr == 4.0
    two.push_part(NONE, ones(NONE), step=5, part=1, parts=2).wait(PATIENCE_S)
    last.wait(PATIENCE_S)
    assert hosted.lr == 3.0
    np.testing.assert_array_equal(one.pull(SMALL), first(SMALL) - 4 - 2 - 3)


def test_a_slow_replica_is_waited_for_as_long_as_the_server_answers(replicas):
    (one, two), _ = replicas(2)
    for ids in (SMALL, LARGE):
        step = len(ids)
        have_patience(one._client, 0.1, 1)
        with moved_by_answers(one._client) as clock:
            ticket = one.push_part(ids, ones(ids), step=step, part=0, parts=2)
            until(
                lambda c=clock, t=ticket: c.passed >= 30 or t.done, what="answers"
            )  # a silent server has two timeouts
            with pytest.raises(ServerTimeout, match="not all parts"):
                one.wait_for(step, timeout_s=0.1)
            two.push_part(ids, ones(ids), step=step, part=1, parts=2).wait(PATIENCE_S)
            ticket.wait(PATIENCE_S)
        have_patience(one._client, 5.0, 30)
    assert one.stats().steps == 2


def test_a_silent_server_is_a_failure(replicas):
    (one,), (server,) = replicas(1)
    have_patience(one._client, 0.1, 1)
    ticket = one.push_part(SMALL, ones(SMALL), step=0, part=0, parts=2)
    server.close()
    with pytest.raises(ServerTimeout, match="no answer"):
        ticket.wait(PATIENCE_S)
    with pytest.raises(ServerTimeout, match="no answer"):
        one.wait()
    one.wait()


def test_parts_whose_confirmations_are_lost_are_applied_once(replicas):
    tables, (server,) = replicas(3, server=Forgetful, timeout_s=0.05, retries=3000)
    failed = []

    def work(me: int) -> None:
        try:
            for step in range(15):
                ids = LARGE if step % 2 else SMALL
                tables[me].push_part(ids, ones(ids), step=step, part=me, parts=3)
                tables[me].wait_for(step - 2)
            tables[me].wait()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert server.lost > 3
    np.testing.assert_array_equal(tables[0].pull(SMALL), first(SMALL) - 45)
    assert tables[0].stats().steps == 15


@pytest.mark.parametrize("ids", [SMALL, LARGE], ids=["messages", "shared memory"])
def test_parts_held_by_a_server_that_restarts_are_not_lost(tmp_path, ids):
    saved = tmp_path / "saved"
    server = Process(tmp_path, bind=lasting_address(), make=FAKE, save_dir=saved)
    options = {"timeout_s": 0.3, "retries": 500}
    try:
        with (
            Client([server.address], server.keys, **options) as a,
            Client([server.address], server.keys, **options) as b,
        ):
            one, two = a.table(CONFIG), b.table(CONFIG)
            tickets = [one.push_part(ids, ones(ids), step=k, part=0, parts=2) for k in range(3)]
            one.push(ids, ones(ids))
            one.pull(ids)
            assert server.terminate() == 0, server.log
            server = Process(tmp_path, bind=server.address, make=FAKE, save_dir=saved)
            for k in range(3):
                two.push_part(ids, ones(ids), step=k, part=1, parts=2)
            two.wait()
            for ticket in tickets:
                ticket.wait(PATIENCE_S)
            np.testing.assert_array_equal(two.pull(ids), first(ids) - 1 - 6)
    finally:
        server.kill()


SENDER = """
import sys, numpy as np
from heterps.ps.client import Client
from heterps.ps.keys import Keys
from heterps.store.config import TableConfig
client = Client([sys.argv[1]], Keys.load(sys.argv[2]))
table = client.table(TableConfig.from_dict(eval(sys.argv[3])))
ids = np.arange(int(sys.argv[4]))
table.push_part(ids, np.ones((len(ids), 4), np.float32), step=0, part=1, parts=3).wait()
table.push_part(ids, np.ones((len(ids), 4), np.float32), step=1, part=1, parts=3)
table.pull(ids)
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("ids", [SMALL, LARGE], ids=["messages", "shared memory"])
def test_a_client_that_is_killed_between_parts(tmp_path, ids):
    """Steps 0 and 1 have all parts; of step 2 the dead client's is missing: nothing of it is applied."""
    server = Process(tmp_path, make=FAKE)
    try:
        with Client([server.address], server.keys) as a, Client([server.address], server.keys) as b:
            one, two = a.table(CONFIG), b.table(CONFIG)
            command = [sys.executable, "-c", SENDER, server.address, str(server.key_file), repr(CONFIG.to_dict())]
            process = subprocess.Popen(
                [*command, str(len(ids))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            try:
                one.push_part(ids, ones(ids), step=0, part=0, parts=3)
                two.push_part(ids, ones(ids), step=0, part=2, parts=3)
                assert process.stdout.readline() == "sent\n"
            finally:
                process.kill()
                process.communicate()
            for step in (1, 2):
                one.push_part(ids, ones(ids), step=step, part=0, parts=3)
                two.push_part(ids, ones(ids), step=step, part=2, parts=3)
            one.wait_for(1, timeout_s=PATIENCE_S)  # its part was there before it died
            with pytest.raises(ServerTimeout, match="step 2"):
                one.wait_for(2, timeout_s=0.5)
            np.testing.assert_array_equal(one.pull(ids), first(ids) - 6)
            two.pull(ids[:1])  # answered after its part has come
            assert a.stats()[0]["held_bytes"] == 2 * len(ids) * 24
            two.abandon()
            for table in (one, two):
                with pytest.raises(ServerError, match="of step 2 was abandoned"):
                    table.wait()
                table.wait()
            np.testing.assert_array_equal(one.pull(ids), first(ids) - 6)
            assert a.stats()[0]["held_bytes"] == 0
            one.push_part(ids, ones(ids), step=0, part=0, parts=2)  # a new attempt of two
            two.push_part(ids, ones(ids), step=0, part=1, parts=2).wait(PATIENCE_S)
            np.testing.assert_array_equal(one.pull(ids), first(ids) - 8)
            assert one.stats().steps == 3
    finally:
        server.kill()


def test_large_parts_travel_in_pieces_and_are_one(replicas, monkeypatch):
    monkeypatch.setattr(remote, "CHUNK_BYTES", 16 * 10)
    (one, two), _ = replicas(2, shards=2)
    one.push_part(SMALL, ones(SMALL), step=0, part=0, parts=2)
    two.push_part(SMALL[:5], ones(SMALL[:5]), step=0, part=1, parts=2).wait(PATIENCE_S)
    np.testing.assert_array_equal(one.pull(SMALL), first(SMALL) - 1 - (SMALL < 5)[:, None])
    assert one.stats().steps == 1


def test_parts_that_do_not_fit_are_refused(replicas, monkeypatch):
    (one, two), _ = replicas(2)
    mine = one.push_part(SMALL, ones(SMALL), step=3, part=0, parts=2, lr=1.0)
    one.pull(SMALL)  # it is there
    for refused, says in (
        (two.push_part(SMALL, ones(SMALL), step=3, part=0, parts=2), "part 0 of step 3 is here already"),
        (one.push_part(SMALL, ones(SMALL), step=3, part=0, parts=2), "part 0 of step 3 is here already"),
        (two.push_part(SMALL, ones(SMALL), step=3, part=1, parts=3), "step 3 has 2 parts"),
        (two.push_part(SMALL, ones(SMALL), step=3, part=1, parts=2, lr=2.0), "lr of step 3"),
    ):
        with pytest.raises(InvalidInput, match=says):
            refused.wait(PATIENCE_S)
    two.push_part(NONE, ones(NONE), step=3, part=1, parts=2).wait(PATIENCE_S)
    mine.wait(PATIENCE_S)
    with pytest.raises(InvalidInput, match="step 3 is over"):
        two.push_part(SMALL, ones(SMALL), step=3, part=1, parts=2).wait(PATIENCE_S)
    with pytest.raises(InvalidInput, match="from 0 to 1"):
        one.push_part(SMALL, ones(SMALL), step=4, part=2, parts=2)
    np.testing.assert_array_equal(one.pull(SMALL), first(SMALL) - 1)
    monkeypatch.setattr(gathering, "MAX_STEPS", 3)
    monkeypatch.setattr(hosting, "HELD_BYTES", 5000)
    held = [one.push_part(SMALL, ones(SMALL), step=4 + k, part=0, parts=2) for k in range(4)]
    one.pull(SMALL)
    with pytest.raises(InvalidInput, match="3 steps wait for parts already"):
        held[3].wait(PATIENCE_S)
    with pytest.raises(InvalidInput, match=r"2880 bytes wait for others already; is a client missing"):
        two.push_part(LARGE, np.ones((4000, 4), np.float32), step=4, part=1, parts=2).wait(PATIENCE_S)


def test_a_client_closes_with_parts_that_are_held(tmp_path):
    with Server(f"ipc://{tmp_path}/sockets/0", make_table=make_fake).start() as server:
        client = Client(server.addresses)
        ticket = client.table(CONFIG).push_part(SMALL, ones(SMALL), step=0, part=0, parts=2)
        until(lambda: server._host.tables["t"].gathering.held_bytes, what="the part")
        client.close()
        with pytest.raises(ServerError, match="closed"):
            ticket.wait(PATIENCE_S)


def test_a_load_drops_what_was_held(replicas, tmp_path):
    (one, two), _ = replicas(2)
    one.pull(SMALL)
    one.save(tmp_path / "snapshot")
    one.push_part(SMALL, ones(SMALL), step=9, part=0, parts=1).wait(PATIENCE_S)
    held = one.push_part(SMALL, ones(SMALL), step=10, part=0, parts=2)
    one.pull(SMALL)  # answered after the part has come: nothing else orders what two clients send
    two.load(tmp_path / "snapshot")
    with pytest.raises(ServerError, match="abandoned"):
        held.wait(PATIENCE_S)
    two.push_part(SMALL, ones(SMALL), step=2, part=0, parts=1).wait(PATIENCE_S)
    np.testing.assert_array_equal(one.pull(SMALL), first(SMALL) - 1)


def test_pieces_of_one_part_come_from_one_client():
    held = Gathering()
    rows = np.ones((1, 4), np.float32)
    held.add(Part("a", 0, 0, 0, 1, 0, 2, None, NONE, rows))
    for client, piece, pieces in (("b", 1, 2), ("a", 0, 2), ("a", 1, 3)):
        with pytest.raises(InvalidInput):
            held.add(Part(client, 1, 0, 0, 1, piece, pieces, None, NONE, rows))
    assert held.take() is None
    held.add(Part("a", 1, 0, 0, 1, 1, 2, None, NONE, rows))
    assert [part.piece for part in held.take().in_order()] == [0, 1]
    assert (held.take(), held.held_bytes) == (None, 0)
