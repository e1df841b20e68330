"""Remote tables: the values of a local one, in order, from any number of threads and shards."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from heterps.errors import InvalidInput
from heterps.ps import channel, remote
from heterps.ps.client import Client
from heterps.ps.errors import InvalidRequest, ServerError, ServerTimeout
from heterps.ps.server import Server
from heterps.store.config import Optimizer, TableConfig
from tests.ps.fakes import FakeTable
from tests.ps.running import PATIENCE_S, have_patience

SGD = Optimizer(name="sgd", lr=1.0)
CONFIG = TableConfig(name="t", dim=4, optimizer=SGD, init_scale=1.0)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_remote_table_is_a_local_one(connect, shards):
    table = connect(shards)[0].table(CONFIG)
    local = FakeTable(CONFIG)
    source = np.random.default_rng(shards)
    for _ in range(5):
        ids = source.integers(-50, 50, (7, 3))
        grads = source.integers(-8, 8, (7, 3, 4)).astype(np.float32)
        np.testing.assert_array_equal(table.pull(ids), local.pull(ids.ravel()).reshape(7, 3, 4))
        table.push(ids, grads)
        local.push(ids.ravel(), grads.reshape(-1, 4))
        np.testing.assert_allclose(table.pull(ids, create=False), local.pull(ids.ravel()).reshape(7, 3, 4), rtol=1e-6)
    table.wait()
    stats = table.stats()
    assert (stats.rows, stats.creations, stats.steps) == (len(local.rows), local.creations, 5)
    before = table.stats().hits
    table.pull(np.array([1000, 1000, 1000, 1, 1]))
    assert table.stats().hits - before == (3 if 1 not in local.rows else 4)
    local.pull(np.array([1000, 1]))
    table.set_lr(0.0)
    table.push(ids, grads)
    np.testing.assert_allclose(table.pull(ids), local.pull(ids.ravel()).reshape(7, 3, 4), rtol=1e-6)


def test_tensors_buffers_and_empty_ids(connect):
    table = connect(2)[0].table(CONFIG)
    ids = torch.arange(6).reshape(2, 3)
    rows = table.pull(ids)
    assert isinstance(rows, torch.Tensor)
    assert rows.shape == (2, 3, 4)
    out = torch.zeros(2, 3, 4)
    assert table.pull(ids, out=out) is out
    assert torch.equal(out, rows)
    table.push(ids, torch.ones(2, 3, 4, requires_grad=True))
    assert torch.equal(table.pull(ids), rows - 1)
    assert table.pull(np.empty((0, 5), np.int64)).shape == (0, 5, 4)
    assert table.pull(np.array(7)).shape == (4,)
    table.push(np.empty(0, np.int64), np.empty((0, 4), np.float32))
    pooled = table.bag(ids.ravel(), torch.tensor([0, 2, 2]), mode="mean")
    assert torch.allclose(pooled[0], (rows - 1).reshape(-1, 4)[:2].mean(0))
    table.push_bag(ids.ravel(), torch.tensor([0, 2, 2]), torch.ones(3, 4))
    assert torch.allclose(table.pull(ids), rows - 2)


@pytest.mark.parametrize(
    ("ids", "grads"),
    [
        (np.arange(3), np.zeros((3, 5), np.float32)),
        (np.arange(3), np.zeros((3, 4))),
        (np.arange(3, dtype=np.int32), np.zeros((3, 4), np.float32)),
        (np.arange(3), np.zeros((2, 4), np.float32)),
    ],
)
def test_wrong_arrays_are_refused_before_they_are_sent(connect, ids, grads):
    table = connect()[0].table(CONFIG)
    with pytest.raises(InvalidInput):
        table.push(ids, grads)
    with pytest.raises(InvalidInput, match="rows to write to"):
        table.pull(np.arange(3), out=np.zeros((3, 5), np.float32))


@pytest.mark.parametrize("ids", [[1.7], [True, False], [2**63], [2**70], np.array([1], ">i8"), torch.ones(1)])
def test_ids_are_not_converted(connect, ids):
    """The rules of a local table: what is no int64 is refused, and not made one."""
    table = connect()[0].table(CONFIG)
    for call in (table.pull, table.prepare, table.counts, lambda ids: table.pull_after(ids, 0)):
        with pytest.raises(InvalidInput, match="int64"):
            call(ids)


def test_gradients_and_buffers_are_not_converted(connect):
    table = connect()[0].table(CONFIG)
    ids, fixed = np.arange(1), np.zeros((1, 4), np.float32)
    fixed.flags.writeable = False
    for grads in ([[1, 2, 3, 4]], [[1.0, 2.0, 3.0, 4.0]]):
        with pytest.raises(InvalidInput, match="float32"):
            table.push(ids, grads)
        with pytest.raises(InvalidInput, match="float32"):
            table.push_bag(ids, np.array([0]), grads)
    for out in (fixed, np.zeros((1, 8), np.float32)[:, ::2], np.zeros((1, 4))):
        with pytest.raises(InvalidInput, match="rows to write to"):
            table.pull(ids, out=out)
        with pytest.raises(InvalidInput, match="rows to write to"):
            table.bag(ids, np.array([0]), out=out)
    assert table.pull([1, 2]).shape == (2, 4)


def test_a_bag_is_written_where_it_shall_be(connect):
    table = connect(2)[0].table(CONFIG)
    ids, offsets, out = torch.arange(6), torch.tensor([0, 2, 2]), torch.zeros(3, 4)
    assert table.bag(ids, offsets, out=out, mode="mean") is out
    assert torch.equal(out, table.bag(ids, offsets, mode="mean"))


@pytest.mark.parametrize("number", [-1, 2**70, 1.5, True, None])
def test_numbers_that_no_message_holds_are_refused(connect, number):
    """None of them reaches the thread that all calls of the client depend on."""
    table = connect()[0].table(CONFIG)
    ids, grads = np.arange(2), np.ones((2, 4), np.float32)
    for call in (
        lambda: table.shrink(min_count=number),
        lambda: table.shrink(unseen_steps=number),
        lambda: table.pull_after(ids, number),
        lambda: table.push_part(ids, grads, step=number, part=0, parts=1),
    ):
        with pytest.raises(InvalidInput, match="a whole number"):
            call()
    assert table.shrink(min_count=np.int64(0)) == 0


def test_a_pull_after_no_step_is_refused_by_the_server(connect):
    client, _ = connect()
    client.table(CONFIG)
    with pytest.raises(InvalidRequest, match="after"):
        client.submit(0, "pull", "t", {"create": True, "after": -3}, [np.arange(2)]).result()


def test_sights_are_counted_by_occurrence(connect):
    config = TableConfig(name="counted", dim=4, counts=True)
    table = connect(2)[0].table(config)
    table.pull(np.array([[1, 1], [2, 1]]))
    table.pull(np.array([1]), create=False)
    assert table.counts(np.array([[1, 2], [3, 1]])).tolist() == [[3, 1], [0, 3]]
    assert table.shrink(min_count=2) == 1
    assert table.stats().rows == 1


@pytest.mark.parametrize(("compress", "error"), [("bf16", 2**-8), ("fp16", 2**-11)])
def test_compressed_rows_are_near(connect, compress, error):
    client, _ = connect(compress=compress)
    table = client.table(CONFIG)
    ids = np.arange(1, 2000)
    exact = FakeTable(CONFIG)
    np.testing.assert_allclose(table.pull(ids), exact.pull(ids), rtol=error, atol=1e-6)
    table.push(ids, np.full((1999, 4), 0.1, np.float32))
    exact.push(ids, np.full((1999, 4), 0.1, np.float32))
    np.testing.assert_allclose(table.pull(ids), exact.pull(ids), rtol=0, atol=3 * error)


def test_large_requests_are_several(connect, monkeypatch):
    monkeypatch.setattr(remote, "CHUNK_BYTES", 16 * 10)
    table = connect(2)[0].table(CONFIG)
    ids = np.arange(500)
    rows = table.pull(ids)
    np.testing.assert_array_equal(rows, FakeTable(CONFIG).pull(ids))
    table.push(ids, np.ones((500, 4), np.float32))
    np.testing.assert_array_equal(table.pull(ids), rows - 1)


def test_small_requests_leave_together(connect, monkeypatch):
    """While one message is on its way, pushes queue up and then leave in one, or as many as hold them."""
    monkeypatch.setattr(channel, "FLIGHT_MESSAGES", 1)
    client, _ = connect()
    table = client.table(CONFIG)
    sizes = []
    line, queued = client._channels[0], threading.Event()
    encoded, receive = line._encoded, line.receive
    monkeypatch.setattr(line, "_encoded", lambda batch: (sizes.append(len(batch)), encoded(batch))[1])
    monkeypatch.setattr(line, "receive", lambda: (queued.wait(PATIENCE_S), receive()))
    for _ in range(300):
        table.push(np.array([1]), np.ones((1, 4), np.float32))
    queued.set()
    table.wait()
    assert sum(sizes) == 300
    assert len(sizes) <= 3
    assert table.pull(np.array([1]))[0, 0] == FakeTable(CONFIG).first(1)[0] - 300


def test_many_threads_share_a_client(connect):
    table = connect(2)[0].table(CONFIG)
    ids = np.arange(20)
    first = table.pull(ids)
    wrong = []

    def work(mine: int) -> None:
        for turn in range(30):
            before = table.pull(ids + 1000 * (mine + 1))
            table.push(ids + 1000 * (mine + 1), np.ones((20, 4), np.float32))
            table.push(ids, np.ones((20, 4), np.float32))
            if not np.allclose(table.pull(ids + 1000 * (mine + 1)), before - 1, atol=1e-4):
                wrong.append((mine, turn))
        table.wait()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    np.testing.assert_allclose(table.pull(ids), first - 120, atol=1e-3)


def test_callers_wait_when_too_much_is_queued(connect, monkeypatch):
    """The queue stays within its bound while a slow server works it off."""
    monkeypatch.setattr(channel, "QUEUE_BYTES", 50_000)
    monkeypatch.setattr(channel, "FLIGHT_BYTES", 20_000)
    client, _ = connect(options={"queued_bytes": 10_000})
    table = client.table(CONFIG)
    most = 0
    for _ in range(200):
        table.push(np.arange(500), np.ones((500, 4), np.float32))
        most = max(most, client._channels[0]._queue_bytes)
    table.wait()
    assert most <= 50_000 + 2 * 500 * 24
    assert table.stats().steps == 200


def test_a_server_with_a_smaller_window_is_waited_for(connect, monkeypatch):
    monkeypatch.setattr(channel, "TOGETHER_BYTES", 0)
    client, _ = connect(options={"window": 2}, timeout_s=0.5, retries=300)
    table = client.table(CONFIG)
    for _ in range(50):
        table.push(np.array([1]), np.ones((1, 4), np.float32))
    table.wait()
    assert table.stats().steps == 50


@pytest.mark.parametrize("target", [1, 2, 3])
def test_snapshots_go_from_any_number_of_shards_to_any_other(connect, tmp_path, target):
    table = connect(2)[0].table(CONFIG)
    ids = np.arange(100)
    table.push(ids, np.ones((100, 4), np.float32))
    rows = table.pull(ids)
    table.save(tmp_path / "snapshot")
    identity = table.save(tmp_path / "snapshot")
    assert len(list((tmp_path / "snapshot").glob("*.hps"))) == 2
    assert identity
    other = connect(target)[0].table(CONFIG)
    other.pull(np.arange(1000, 1010))
    other.load(tmp_path / "snapshot")
    assert other.stats().rows == 100
    np.testing.assert_array_equal(other.pull(ids, create=False), rows)
    (tmp_path / "snapshot" / "manifest.json").unlink()
    with pytest.raises(InvalidInput, match=r"manifest\.json"):
        other.load(tmp_path / "snapshot")


def test_places_that_are_no_snapshots_are_refused(connect, tmp_path):
    """One shard's file would drop the rows of all others; a file of a whole table is fine."""
    table = connect(2)[0].table(CONFIG)
    rows = table.pull(np.arange(100))
    table.save(tmp_path / "snapshot")
    (file, _) = (tmp_path / "snapshot").glob("*.hps")
    with pytest.raises(InvalidInput, match="one shard of 2"):
        table.load(file)
    assert table.stats().rows == 100
    local = FakeTable(CONFIG)
    local.pull(np.arange(100))
    local.save(str(tmp_path / "whole.hps"))
    table.load(tmp_path / "whole.hps")
    np.testing.assert_array_equal(table.pull(np.arange(100), create=False), rows)
    for wrong in (file, "/proc/nope"):
        with pytest.raises(InvalidInput, match="name another one"):
            table.save(wrong)


def test_a_server_that_cannot_write_says_so_without_a_traceback(connect, tmp_path, caplog):
    client, _ = connect()
    client.table(CONFIG)
    path = str(tmp_path / "missing" / "shard.hps")
    with pytest.raises(ServerError, match="save on a server failed"):
        client.submit(0, "save", "t", {"path": path, "delta": False, "id": "x", "finite": False}).result()
    assert [record.exc_info for record in caplog.records] == [None]


def test_options_that_a_table_refuses_are_invalid_requests(tmp_path, caplog):
    config = TableConfig(name="t", dim=4, counts=True)
    opened = {"config": {**config.to_dict(), "admit_after": 2**40}, "shard": 0, "shards": 1}
    with Server(f"ipc://{tmp_path}/sockets/0").start() as server, Client(server.addresses) as client:
        table = client.table(config)
        for call in (
            lambda: table.shrink(unseen_seconds=float("nan")),
            lambda: table.shrink(unseen_seconds=-1.0),
            lambda: table.set_lr(float("inf")),
            lambda: client.submit(0, "open", "other", opened).result(),
        ):
            with pytest.raises(InvalidRequest):
                call()
    assert not caplog.records  # a traceback is for our own bugs


def test_errors_have_types_and_hurt_nobody(connect):
    client, _ = connect()
    table = client.table(CONFIG)
    with pytest.raises(ServerError, match="another configuration"):
        client.table(TableConfig(name="t", dim=8))
    unknown = remote.RemoteTable(client, TableConfig(name="tt", dim=4))
    with pytest.raises(ServerError, match="no table 'tt'"):
        unknown.pull(np.array([1]))
    wrong = remote.RemoteTable(client, TableConfig(name="t", dim=5))
    wrong.push(np.array([1]), np.ones((1, 5), np.float32))
    with pytest.raises(ServerError, match="shape"):
        wrong.wait()
    wrong.wait()
    with pytest.raises(InvalidInput, match="lr"):
        table.set_lr(-1.0)
    with pytest.raises(InvalidInput, match="counts"):
        table.counts(np.array([1]))
    np.testing.assert_array_equal(table.pull(np.array([1])), FakeTable(CONFIG).pull(np.array([1])))


def test_a_server_that_is_not_there_times_out(tmp_path, connect):
    client, (server,) = connect()
    table = client.table(CONFIG)
    server.close()
    have_patience(client, 0.1, 2)
    table.push(np.array([1]), np.ones((1, 4), np.float32))
    with pytest.raises(ServerTimeout, match="no answer from"):
        table.wait()
    client.close()
    with pytest.raises(ServerError, match="closed"):
        table.pull(np.array([1]))


@pytest.mark.parametrize("closing", [False, True], ids=["at once", "while it closes"])
def test_answers_of_servers_that_are_gone_need_not_be_waited_for(connect, closing):
    """Also by whoever waits for one in another thread."""
    client, (server,) = connect(timeout_s=PATIENCE_S, retries=0)
    client.table(CONFIG)
    server.close()
    asked = client.submit(0, "stats", "", {})  # queued when this returns: closing waits for it
    with ThreadPoolExecutor(1) as threads:
        patient = threads.submit(client.close) if closing else None
        with pytest.raises(TimeoutError):
            (patient or asked).result(timeout=0.3)
        client.close(wait=False)
        with pytest.raises(ServerError, match="the client is closed"):
            asked.result(timeout=PATIENCE_S)
        if patient is not None:
            patient.result(timeout=PATIENCE_S)
