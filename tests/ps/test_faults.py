"""Lost messages, dead servers, strangers: nothing is applied twice, nobody else is hurt. Real processes and sockets."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import zmq

from heterps.errors import HeterPSError, InvalidInput
from heterps.ps.client import Client
from heterps.ps.errors import ServerError, ServerTimeout
from heterps.ps.keys import Keys
from heterps.ps.server import Server
from heterps.store.config import Optimizer, TableConfig
from tests.ps.fakes import FakeTable, make_fake
from tests.ps.proxy import Proxy
from tests.ps.running import (
    FAKE,
    PATIENCE_S,
    ROOT,
    Process,
    have_patience,
    lasting_address,
    running_server,
    until,
)

CONFIG = TableConfig(name="t", dim=4, optimizer=Optimizer(name="sgd", lr=1.0), init_scale=1.0)
IDS = np.arange(40)
FIRST = FakeTable(CONFIG).pull(IDS)
ONES = np.ones((40, 4), np.float32)


class Forgetful(Server):
    """Loses every third message of replies."""

    sent = lost = 0

    def _send(self, route, replies, *shared):
        self.sent += 1
        if self.sent % 3 == 0:
            self.lost += 1
        else:
            super()._send(route, replies, *shared)


def test_a_push_whose_confirmation_is_lost_is_applied_once(connect):
    client, (server,) = connect(server=Forgetful, timeout_s=0.05, retries=3000)
    table = client.table(CONFIG)
    for turn in range(20):
        table.push(IDS, ONES)
        if turn % 4 == 0:
            np.testing.assert_array_equal(table.pull(IDS), FIRST - turn - 1)
    table.wait()
    np.testing.assert_array_equal(table.pull(IDS), FIRST - 20)
    assert server.lost >= 3  # however many pushes are confirmed together
    assert table.stats().steps == 20


@pytest.mark.parametrize("seed", range(3))
def test_connections_cut_anywhere_change_nothing(seed):
    source = random.Random(seed)
    keys = Keys.generate()
    with Server("tcp://127.0.0.1:*", keys, make_table=make_fake).start() as server:
        proxy = Proxy(server.addresses[0], [source.randrange(200, 60_000) for _ in range(8)])
        try:
            with Client([proxy.address], keys, timeout_s=0.15, retries=1000, shared=False) as client:
                table = client.table(CONFIG)
                for turn in range(150):
                    table.push(IDS, ONES)
                    if turn % 10 == 9:
                        np.testing.assert_array_equal(table.pull(IDS), FIRST - turn - 1)
                table.wait()
                assert proxy.cuts >= 3
                assert table.stats().steps == 150
        finally:
            proxy.close()


def test_a_killed_server_comes_back_from_a_snapshot(tmp_path):
    server = Process(tmp_path, bind=lasting_address(), make=FAKE)
    try:
        with Client([server.address], server.keys, timeout_s=0.3, retries=500) as client:
            table = client.table(CONFIG)
            table.push(IDS, ONES)
            table.save(tmp_path / "snapshot")
            for _ in range(200):
                table.push(IDS, ONES)
            server.kill()
            table.push(IDS, ONES)  # all before it may have been confirmed
            server = Process(tmp_path, bind=server.address, make=FAKE)
            with pytest.raises(ServerError, match="no table"):
                table.wait()
            table = client.table(CONFIG)
            table.load(tmp_path / "snapshot")
            np.testing.assert_array_equal(table.pull(IDS), FIRST - 1)
            table.push(IDS, ONES)
            np.testing.assert_array_equal(table.pull(IDS), FIRST - 2)
    finally:
        server.kill()


def test_sigterm_drains_saves_and_a_restart_goes_on(tmp_path):
    """Pushes under way while one server ends and the next starts are all applied, and once."""
    saved = tmp_path / "saved"
    server = Process(tmp_path, bind=lasting_address(), make=FAKE, save_dir=saved)
    try:
        with Client([server.address], server.keys, timeout_s=0.3, retries=500) as client:
            table = client.table(CONFIG)
            for restart in range(3):
                for _ in range(200):
                    table.push(IDS, ONES)
                assert server.terminate() == 0, server.log
                server = Process(tmp_path, bind=server.address, make=FAKE, save_dir=saved)
                table.wait()
                np.testing.assert_array_equal(table.pull(IDS), FIRST - 200 * (restart + 1))
            assert len(list(saved.glob("*.hps"))) == 1
    finally:
        server.kill()


def strangers() -> dict[str, object]:
    """Ways not to have the job's key: another client key, all other keys, no keys at all."""

    def other_client_key(keys: Keys) -> Keys:
        new = Keys.generate()
        return Keys(
            server_public=keys.server_public, server_secret=keys.server_secret,
            client_public=new.client_public, client_secret=new.client_secret,
        )  # fmt: skip

    return {"client key": other_client_key, "all keys": lambda keys: Keys.generate(), "no keys": lambda keys: None}


@pytest.mark.parametrize("kind", strangers())
def test_a_client_without_the_key_is_refused_and_logged(tmp_path, kind):
    server = Process(tmp_path, make=FAKE)
    context = zmq.Context()
    try:
        with Client([server.address], server.keys) as client:
            table = client.table(CONFIG)
            keys = strangers()[kind](server.keys)
            if keys is None:
                plain = context.socket(zmq.DEALER)
                plain.linger = 0
                plain.connect(server.address)
                plain.send(b"hello")
            else:
                stranger = Client([server.address], keys, timeout_s=0.3, retries=0)
                with stranger, pytest.raises(ServerTimeout, match="key file"):
                    stranger.table(CONFIG)
            # libzmq tells the address with the key; without a handshake it may be gone before it can be asked for.
            where = "127.0.0.1" if kind == "client key" else ""
            until(lambda: f"refused a client at {where}" in server.log, what="a line in the log")
            np.testing.assert_array_equal(table.pull(IDS), FIRST)
            assert client.stats()[0]["refused"] >= 1
            assert client.stats()[0]["clients"] == 1
    finally:
        context.destroy(linger=0)
        server.kill()


def test_a_client_that_was_refused_before_its_first_call_does_not_hang(tmp_path):
    """Its socket has no way out any more: a call ends by its timeout all the same."""
    server = Process(tmp_path, make=FAKE)
    try:
        with Client([server.address], strangers()["client key"](server.keys), timeout_s=0.3, retries=0) as stranger:
            until(lambda: "refused a client" in server.log, what="a line in the log")
            with pytest.raises(ServerTimeout, match="key file"):
                stranger.table(CONFIG)
    finally:
        server.kill()


def test_an_oversized_frame_drops_its_sender_alone(tmp_path):
    keys = Keys.generate()
    with (
        Server("tcp://127.0.0.1:*", keys, make_table=make_fake, max_frame_bytes=100_000).start() as server,
        Client(server.addresses, keys) as good,
        Client(server.addresses, keys, shared=False) as bad,
    ):
        table = good.table(CONFIG)
        big = bad.table(CONFIG)
        many = np.arange(50_000)
        have_patience(bad, 0.2, 1)
        big.push(many, np.ones((50_000, 4), np.float32))
        with pytest.raises(HeterPSError):
            big.wait()
        have_patience(bad, 10.0, 15)
        np.testing.assert_array_equal(table.pull(IDS), FIRST)
        np.testing.assert_array_equal(big.pull(IDS), FIRST)
        assert table.stats().steps == 0


def test_a_frame_a_little_too_large_gets_an_error_reply(tmp_path):
    limit = 100_000
    bind = f"ipc://{tmp_path}/sockets/0"
    with (
        Server(bind, make_table=make_fake, max_frame_bytes=limit).start() as server,
        Client([bind], timeout_s=60.0, retries=0, shared=False) as client,
    ):
        table = client.table(CONFIG)
        many = np.zeros((limit // 12, 4), np.float32)  # 133 KB
        table.push(np.arange(len(many)), many)
        with pytest.raises(ServerError, match=f"a frame of {many.nbytes} bytes, at most {limit}"):
            table.wait()
        np.testing.assert_array_equal(table.pull(IDS), FIRST)
        assert client.stats()[0]["malformed"] == 1
        assert server.addresses == [bind]


def test_a_message_that_breaks_the_format_fails_nothing_else_of_its_client(connect):
    """Pushes before it and pulls behind it are under way; it alone fails, and nothing waits for a timeout."""
    client, _ = connect(timeout_s=60.0, retries=0)
    table = client.table(CONFIG)
    for _ in range(20):
        table.push(np.arange(2000), np.ones((2000, 4), np.float32))
    broken = client.submit(0, "open", "n" * 300, {})
    rows = table.pull(IDS)
    with pytest.raises(ServerError, match="table: a short string"):
        broken.result()
    table.wait()
    np.testing.assert_array_equal(rows, FIRST - 20)
    with pytest.raises(InvalidInput, match="at most 256"):
        client.table(replace(CONFIG, name="n" * 300))
    with pytest.raises(InvalidInput, match="more than a message holds"):
        client.submit(0, "push", "t", {}, [np.broadcast_to(np.float32(0), (1 << 20, 1 << 14))])


def test_a_flood_of_strangers_fills_no_log(caplog):
    keys = Keys.generate()
    with (
        Server("tcp://127.0.0.1:*", keys, make_table=make_fake).start() as server,
        Client(server.addresses, keys) as client,
    ):
        port = int(server.addresses[0].rpartition(":")[2])
        for _ in range(40):
            socket.create_connection(("127.0.0.1", port)).close()
        until(lambda: client.stats()[0]["refused"] == 40, what="all counted")
    assert [record.args[-1] for record in caplog.records if "refused" in record.msg] == [1, 2, 4, 8, 16, 32]


def test_a_malformed_message_gets_an_error_reply(tmp_path):
    with Server(f"ipc://{tmp_path}/sockets/0", make_table=make_fake).start() as server, zmq.Context() as context:
        with context.socket(zmq.DEALER) as dealer:
            dealer.linger = 0
            dealer.connect(server.addresses[0])
            dealer.send_multipart([b"nonsense", b"more"])
            assert dealer.poll(1000 * PATIENCE_S)
            assert b"malformed" in dealer.recv()
        with Client(server.addresses) as client:
            assert client.stats()[0]["malformed"] == 1


def test_a_server_listens_on_tcp_and_ipc_at_once(tmp_path):
    keys = Keys.generate()
    binds = ["tcp://127.0.0.1:*", f"ipc://{tmp_path}/sockets/0"]
    with (
        Server(binds, keys, make_table=make_fake).start() as server,
        Client(server.addresses[:1], keys) as far,
        Client(server.addresses[1:]) as near,
    ):
        far_table, near_table = far.table(CONFIG), near.table(CONFIG)
        far_table.push(IDS, ONES)
        far_table.wait()
        np.testing.assert_array_equal(near_table.pull(IDS), FIRST - 1)


def test_a_directory_belongs_to_one_server(tmp_path):
    saved = tmp_path / "saved"
    bind = [f"ipc://{tmp_path}/sockets/{number}" for number in range(2)]
    with Server(bind[0], make_table=make_fake, save_dir=saved).start() as server:
        with pytest.raises(InvalidInput, match="another server has it"):
            Server(bind[1], make_table=make_fake, save_dir=saved)
        with Client(server.addresses) as client:
            client.table(CONFIG).pull(IDS)
    with Server(bind[1], make_table=make_fake, save_dir=saved).start(), Client(bind[1:]) as client:
        assert client.table(CONFIG).stats().rows == len(IDS)
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", "/proc/nope"):
        with pytest.raises(InvalidInput, match=f"save-dir {wrong}"):
            Server(bind[0], save_dir=wrong)


def test_an_address_belongs_to_one_server(tmp_path):
    keys = Keys.generate()
    binds = [f"ipc://{tmp_path}/sockets/0", "tcp://127.0.0.1:*"]
    with Server(binds, keys, make_table=make_fake).start() as server, Client(server.addresses[:1]) as client:
        table = client.table(CONFIG)
        for address in server.addresses:
            with pytest.raises(InvalidInput, match="cannot bind"):
                Server(address, keys, make_table=make_fake)
        np.testing.assert_array_equal(table.pull(IDS), FIRST)
    Server(server.addresses, keys, make_table=make_fake).close()


def test_the_command_refuses_a_directory_it_cannot_write_to(tmp_path):
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "heterps.cli.main", "ps", "serve", "--bind", f"ipc://{tmp_path}/sockets/0"]
    done = subprocess.run(
        [*command, "--save-dir", str(tmp_path / "file")], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("heterps: save-dir")
    assert done.stderr.count("\n") == 1


def test_running_server_gives_addresses_and_keys(tmp_path):
    with running_server(tmp_path, make=FAKE, shards=2) as (addresses, keys), Client(addresses, keys) as client:
        np.testing.assert_array_equal(client.table(CONFIG).pull(IDS), FIRST)
