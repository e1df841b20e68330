"""Replies that nobody takes: a client that does not read, or is gone, costs a bounded amount and hurts nobody."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import zmq

from heterps.ps import channel, wire
from heterps.ps.client import Client
from heterps.ps.server import Server
from heterps.store.config import Optimizer, TableConfig
from tests.ps.fakes import FakeTable
from tests.ps.running import PATIENCE_S, until

CONFIG = TableConfig(name="t", dim=256, optimizer=Optimizer(name="sgd", lr=1.0), init_scale=1.0)
IDS = np.arange(1024)
ROWS_BYTES = 4 * 256 * 1024
LIMIT = 4 * ROWS_BYTES
PULLS = 60
SMALL = TableConfig(name="s", dim=4, optimizer=Optimizer(name="sgd", lr=1.0), init_scale=1.0)


class Watched(Server):
    """Counts the operations it has decided on, and the most bytes that were on the way."""

    judged = most_bytes = 0

    def _accept(self, session, operations):
        super()._accept(session, operations)
        self.most_bytes = max(self.most_bytes, self._outgoing.nbytes)
        self.judged += sum(operation.verb == "pull" for operation in operations if session.client == bytes(16))


@pytest.mark.parametrize("one_by_one", [False, True])
def test_a_client_that_does_not_read_is_made_to_wait_alone(tmp_path, one_by_one):
    """It asks for 60 MiB and reads nothing: a few pulls are done, the others are turned away until it reads.

    All at once they are counted while they are in work, one by one when they are sent and not taken.
    """
    with (
        Watched(f"ipc://{tmp_path}/sockets/0", reply_bytes=LIMIT).start() as server,
        Client(server.addresses, shared=False) as good,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as stalled,
    ):
        table = good.table(CONFIG)
        rows = table.pull(IDS)
        stalled.linger, stalled.rcvhwm, stalled.rcvbuf = 0, 1, 4096
        stalled.connect(server.addresses[0])
        for seq in range(PULLS):
            pull = wire.Operation(seq, "pull", "t", {"create": False}, [IDS])
            stalled.send_multipart(wire.encode_request(wire.Request(bytes(16), 0, [pull])))
            if one_by_one:
                until(lambda sent=seq: server.judged > sent and not server._in_work, what="its end")
        until(lambda: server.judged >= PULLS, what="all pulls done or turned away")
        np.testing.assert_array_equal(table.pull(IDS), rows)
        assert LIMIT <= server.most_bytes < LIMIT + 3 * ROWS_BYTES  # one pull more than the limit, and our own
        statuses = []
        while len(statuses) < PULLS:
            assert stalled.poll(1000 * PATIENCE_S)
            replies, _ = wire.decode_replies(stalled.recv_multipart())
            statuses += [reply.status for reply in replies]
        assert set(statuses) == {"ok", "busy", "gap"}
        again = wire.Operation(statuses.count("ok"), "pull", "t", {"create": False}, [IDS])
        stalled.send_multipart(wire.encode_request(wire.Request(bytes(16), 0, [again])))
        assert stalled.poll(1000 * PATIENCE_S)
        ((reply,), _) = wire.decode_replies(stalled.recv_multipart())
        np.testing.assert_array_equal(reply.arrays[0], rows)
        until(lambda: good.stats()[0]["reply_bytes"] == 0, what="nothing on the way")


def test_a_client_that_asks_for_more_than_its_room_gets_it_in_turns(connect):
    """Room for one pull: the pulls of eight threads are turned away again and again, and none waits for a timeout."""
    client, _ = connect(options={"reply_bytes": 1}, shared=False, timeout_s=60.0, retries=0)
    table, other = client.table(SMALL), client.table(TableConfig(name="o", dim=4, optimizer=SMALL.optimizer))
    ids = np.arange(2000)
    first = FakeTable(SMALL).pull(ids)
    wrong = []

    def work(mine: int) -> None:
        for _ in range(10):
            if not np.array_equal(table.pull(ids), first):
                wrong.append(mine)
            other.push(ids[:50], np.ones((50, 4), np.float32))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    other.wait()
    assert not wrong
    assert other.stats().steps == 80


def test_a_client_that_ends_leaves_no_reply_behind(connect, monkeypatch):
    monkeypatch.setattr(channel, "GOODBYE_MS", int(1000 * PATIENCE_S))  # a machine that stalls loses it otherwise
    good, (server,) = connect()
    for _ in range(3):
        with Client(server.addresses, shared=False) as client:
            client.table(SMALL).pull(np.arange(2000))
            assert good.stats()[0]["kept_bytes"] == 4 * 4 * 2000
        until(lambda: good.stats()[0]["kept_bytes"] == 0, what="the goodbye")
