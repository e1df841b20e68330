"""Client and server on one machine: large arrays cross in shared memory, whatever happens to either of them."""

from __future__ import annotations

import functools
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
import zmq

from heterps.ps import channel, client, neighbours, server, shared, wire
from heterps.ps.client import Client
from heterps.ps.errors import ServerTimeout
from heterps.ps.keys import Keys, protect
from heterps.ps.server import Server
from heterps.ps.shared import ALIGN, Arena, Offer, View
from heterps.store.config import Optimizer, TableConfig
from tests.ps.fakes import FakeTable, make_fake
from tests.ps.running import FAKE, PATIENCE_S, ROOT, Process, have_patience, lasting_address, until
from tests.ps.test_faults import Forgetful

CONFIG = TableConfig(name="t", dim=4, optimizer=Optimizer(name="sgd", lr=1.0), init_scale=1.0)
IDS = np.arange(4000)
FIRST = FakeTable(CONFIG).pull(IDS)
ONES = np.ones((4000, 4), np.float32)


def test_large_arrays_do_not_travel(tmp_path):
    """Frames of 4 KB are refused, and yet 64 KB cross both ways, over tcp as over ipc; nothing stays taken."""
    keys = Keys.generate()
    binds = ["tcp://127.0.0.1:*", f"ipc://{tmp_path}/sockets/0"]
    with Server(binds, keys, make_table=make_fake, max_frame_bytes=4096).start() as one:
        expected = FIRST.copy()
        for address in one.addresses:
            expected -= np.float32(0.1)
            with Client([address], keys, compress="fp16") as near:  # compression is for what travels
                table = near.table(CONFIG)
                table.push(IDS, ONES * 0.1)
                table.wait()
                np.testing.assert_array_equal(table.pull(IDS), expected)
                assert near.stats()[0]["sharing"] == 1
                assert near.stats()[0]["shared_bytes"] == 0
                assert near._arena.held_bytes == 0


def test_rows_are_read_where_the_server_wrote_them(connect, monkeypatch):
    """A pull of ids that do not repeat copies nothing: its block is ours as long as anything looks into it."""
    near, _ = connect()
    table = near.table(CONFIG)
    table.pull(IDS)  # memory is shared from the first answer on

    def held() -> int:
        return near.stats()[0]["shared_bytes"]

    for ids in (IDS.reshape(400, 10), torch.from_numpy(IDS)):
        rows = table.pull(ids)
        assert type(rows) is (np.ndarray if isinstance(ids, np.ndarray) else torch.Tensor)
        np.testing.assert_array_equal(np.asarray(rows), FIRST.reshape(*ids.shape, 4))
        assert held() >= FIRST.nbytes
        part = rows[1:][2:]
        del rows
        others = [table.pull(IDS) for _ in range(3)]  # are written elsewhere
        table.push(IDS, ONES * 0)
        table.wait()
        np.testing.assert_array_equal(np.asarray(part), FIRST.reshape(*ids.shape, 4)[3:])
        del part, others
        assert held() == 0
    monkeypatch.setattr(shared, "KEPT_BYTES", 2 * FIRST.nbytes)
    three = [table.pull(IDS) for _ in range(3)]  # the last is a copy
    assert FIRST.nbytes * 2 <= held() < FIRST.nbytes * 3
    np.testing.assert_array_equal(three, [FIRST] * 3)
    del three
    assert held() == 0
    into = np.empty_like(FIRST)
    assert table.pull(IDS, out=into) is into
    assert held() == 0
    np.testing.assert_array_equal(into, FIRST)


@pytest.mark.parametrize("off", ["client", "server"])
def test_it_can_be_switched_off(connect, off):
    near, _ = connect(options={"shared": off != "server"}, shared=off != "client")
    table = near.table(CONFIG)
    table.push(IDS, ONES)
    np.testing.assert_array_equal(table.pull(IDS), FIRST - 1)
    assert not near.shares(0)
    assert near.stats()[0]["sharing"] == 0


def test_a_full_arena_falls_back_to_messages(connect, monkeypatch):
    """Each side has room for one array and a half; threads that pull at once see nothing of it."""
    for module in (client, server):
        monkeypatch.setattr(module, "Arena", functools.partial(Arena, 100_000))
    near, (host,) = connect()
    table = near.table(CONFIG)
    kept = [near.submit(0, "pull", "t", {"create": True}, [IDS]).result() for _ in range(3)]
    for reply in kept:
        np.testing.assert_array_equal(reply.arrays[0], FIRST)
    assert [reply.lent is not None for reply in kept] == [True, False, False]
    for _ in range(5):
        table.push(IDS, ONES)
    np.testing.assert_array_equal(table.pull(IDS), FIRST - 5)
    del kept, reply  # what nobody gave back goes back by itself
    table.pull(IDS)
    assert host._neighbours.arena.held_bytes == 0


def test_lost_replies_leave_no_block_taken_and_apply_nothing_twice(connect):
    near, (host,) = connect(server=Forgetful, timeout_s=0.05, retries=3000)
    table = near.table(CONFIG)
    for turn in range(20):
        table.push(IDS, ONES)
        if turn % 4 == 0:
            np.testing.assert_array_equal(table.pull(IDS), FIRST - turn - 1)
    table.wait()
    np.testing.assert_array_equal(table.pull(IDS), FIRST - 20)
    assert near.shares(0)
    assert host.lost >= 3  # however many pushes are confirmed together
    until(lambda: near._arena.held_bytes == host._neighbours.arena.held_bytes == 0, what="answers that came twice")


KEEPER = """
import sys, numpy as np
from heterps.ps.client import Client
from heterps.store.config import Optimizer, TableConfig
client = Client([sys.argv[1]])
client.table(TableConfig.from_dict(eval(sys.argv[2])))
kept = [client.submit(0, "pull", "t", {"create": True}, [np.arange(4000)]).result() for _ in range(3)]
print("kept", flush=True)
sys.stdin.read()
"""


def test_blocks_and_memory_of_a_killed_client_come_back(tmp_path):
    with Server(f"ipc://{tmp_path}/sockets/0", make_table=make_fake).start() as host:
        command = [sys.executable, "-c", KEEPER, host.addresses[0], repr(CONFIG.to_dict())]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            assert process.stdout.readline() == "kept\n"
            assert host._neighbours.arena.held_bytes == 3 * (IDS.nbytes * 2 + ALIGN)
        finally:
            process.kill()
            process.communicate()
        with Client(host.addresses) as near:
            np.testing.assert_array_equal(near.table(CONFIG).pull(IDS), FIRST)
            assert near.stats()[0]["sharing"] == 1
            assert near.stats()[0]["shared_bytes"] == 0


def test_a_server_that_restarts_is_shared_with_again(tmp_path):
    saved = tmp_path / "saved"
    process = Process(tmp_path, bind=lasting_address(), make=FAKE, save_dir=saved)
    try:
        with Client([process.address], process.keys, timeout_s=0.3, retries=500) as near:
            table = near.table(CONFIG)
            for turn in range(3):
                for _ in range(20):
                    table.push(IDS, ONES)
                assert process.terminate() == 0, process.log
                process = Process(tmp_path, bind=process.address, make=FAKE, save_dir=saved)
                table.wait()
                np.testing.assert_array_equal(table.pull(IDS), FIRST - 20 * (turn + 1))
                assert near.stats()[0]["sharing"] == 1
                until(
                    lambda: near._arena.held_bytes == near.stats()[0]["shared_bytes"] == 0,
                    what="answers that came twice",
                )
    finally:
        process.kill()


def test_what_was_given_up_is_not_written_over(tmp_path):
    """A server that sleeps through the client's patience reads, when it wakes, what was sent and nothing later."""
    process = Process(tmp_path, make=FAKE)
    try:
        with Client([process.address], process.keys) as near:
            table = near.table(CONFIG)
            table.pull(IDS)
            process.freeze()
            have_patience(near, 0.2, 1)
            table.push(IDS, ONES)
            with pytest.raises(ServerTimeout):
                table.wait()
            table.push(IDS, 1000 * ONES)
            with pytest.raises(ServerTimeout):
                table.wait()
            have_patience(near, 10.0, 15)
            process.process.send_signal(signal.SIGCONT)
            until(lambda: np.array_equal(table.pull(IDS, create=False), table.pull(IDS)), what="an answer")
            applied = FIRST - table.pull(IDS)
            assert (applied == applied[0, 0]).all()
            assert applied[0, 0] in (0, 1, 1000, 1001)
            table.push(IDS, ONES)
            np.testing.assert_array_equal(table.pull(IDS), FIRST - applied - 1)
    finally:
        process.process.send_signal(signal.SIGCONT)
        process.kill()


def test_a_server_that_cannot_map_any_more_is_sent_messages(connect, monkeypatch):
    near, _ = connect()
    table = near.table(CONFIG)
    table.push(IDS, ONES)
    table.wait()
    assert near.shares(0)
    monkeypatch.setattr(neighbours.Neighbours, "view_of", lambda *_: None)
    table.push(IDS, ONES)
    np.testing.assert_array_equal(table.pull(IDS), FIRST - 2)
    assert not near.shares(0)
    assert near._arena.held_bytes == 0


def test_a_client_that_cannot_map_is_sent_messages(connect, monkeypatch):
    real = View.open
    monkeypatch.setattr(channel.View, "open", lambda offer: None)
    near, _ = connect()
    table = near.table(CONFIG)
    monkeypatch.setattr(channel.View, "open", real)
    np.testing.assert_array_equal(table.pull(IDS), FIRST)
    assert not near.shares(0)


def asked(dealer: zmq.Socket[bytes], request: wire.Request, arrays: list) -> wire.Reply:
    """The answer to an operation whose buffers are described as given."""
    frames = wire.encode_request(request)
    header = wire.msgpack.unpackb(frames[0])
    header[3][0][4] = arrays
    dealer.send_multipart([wire.msgpack.packb(header)])
    assert dealer.poll(1000 * PATIENCE_S)
    ((reply,), _) = wire.decode_replies(dealer.recv_multipart())
    return reply


def test_places_that_are_none_hurt_nobody(tmp_path):
    process = Process(tmp_path, make=FAKE)
    arena, other = Arena(1 << 20), Arena(1 << 20)
    (start, _), block = arena.take(8 * 4000)
    block.view(np.int64)[:] = IDS
    try:
        with (
            zmq.Context() as context,
            context.socket(zmq.DEALER) as dealer,
            Client([process.address], process.keys) as good,
        ):
            table = good.table(CONFIG)
            dealer.linger = 0
            protect(dealer, process.address, process.keys, server=False)
            dealer.connect(process.address)

            def ask(described: list, offer: Offer | None = arena.offer) -> wire.Reply:
                operation = wire.Operation(0, "counts", "t", {})
                sharing = None if offer is None else wire.Sharing(offer)
                return asked(dealer, wire.Request(bytes(16), 0, [operation], sharing), described)

            wrong = [[0, 32000], [64, 32000], [start + 1, 32000], [start, 1 << 20], [start, 31999], [-64, 32000]]
            for place in [
                *wrong,
                [2**61, 32000],
                [start],
                [start, 32000, 0],
                ["0", 32000],
                [1.0, 32000],
                [True, 32000],
            ]:
                reply = ask([["i8", [4000], place]])
                assert (reply.seq, reply.status) == (-1, "error"), place
                assert "malformed" in reply.value
            assert ask([["i8", [2**40], [start, 2**43]]]).status == "error"
            mine = arena.offer
            strange = [Offer(mine.process, other.offer.descriptor, mine.token), Offer(mine.process, 0, mine.token)]
            for offer in [None, *strange, Offer(1, 1, "x"), Offer(2**60, 2**60, "")]:
                assert ask([["i8", [4000], [start, 32000]]], offer).status == "unmapped", offer
            assert "counts=True" in ask([["i8", [4000], [start, 32000]]]).value  # a good one is read
            np.testing.assert_array_equal(table.pull(IDS), FIRST)
            assert process.process.poll() is None
    finally:
        process.kill()


def test_prepared_ids_are_not_told_apart_again(connect, monkeypatch):
    table = connect(2)[0].table(CONFIG)
    ids = np.random.default_rng(0).integers(0, 4000, (500, 4))
    table.prepare(ids)
    monkeypatch.setattr("heterps.ps.shards.distinct_batch", lambda *_: pytest.fail("told apart again"))
    np.testing.assert_array_equal(table.pull(ids), FIRST[ids])
    table.push(ids, np.ones((500, 4, 4), np.float32))
    table.wait()
