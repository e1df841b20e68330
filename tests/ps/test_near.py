"""Lines within a machine: short messages take them, strangers cannot, and nothing depends on them."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest

from heterps.ps import near, wire
from heterps.ps.channel import HURRIED
from heterps.ps.client import Client
from heterps.ps.keys import Keys
from heterps.ps.near import PACKET_BYTES, Exchange, Line
from heterps.ps.server import Server
from heterps.store.config import Optimizer, TableConfig
from tests.ps.fakes import FakeTable, make_fake
from tests.ps.messages import mutate, valid_request
from tests.ps.running import PATIENCE_S, until

CONFIG = TableConfig(name="t", dim=4, optimizer=Optimizer(name="sgd", lr=1.0), init_scale=1.0)
IDS = np.arange(4000)
FIRST = FakeTable(CONFIG).pull(IDS)
ONES = np.ones((4000, 4), np.float32)


@pytest.fixture
def one():
    keys = Keys.generate()
    with Server("tcp://127.0.0.1:*", keys, make_table=make_fake).start() as server:
        server.keys = keys
        yield server


def token(server: Server) -> str:
    return server._neighbours.arena.offer.token


def lines(server: Server) -> int:
    return len(server._exchange._lines)


def test_messages_within_a_machine_take_the_line(one, monkeypatch):
    with Client(one.addresses, one.keys) as client:
        table = client.table(CONFIG)
        table.pull(IDS)  # the answer offers memory, and with it the line
        table.pull(IDS)
        by_socket = []
        monkeypatch.setattr(one._outgoing, "send", lambda *message: by_socket.append(message))
        for turn in range(20):
            table.push(IDS, ONES)
            np.testing.assert_array_equal(table.pull(IDS), FIRST - turn - 1)
        assert not by_socket
        monkeypatch.undo()
        rows = client.submit(0, "pull", "t", {"create": True, "wire": None}, [IDS[:1000]])  # 8 KB of ids: a frame
        assert len(rows.result(10).arrays[0]) == 1000
    until(lambda: lines(one) == 0, what="the line to end with its client")


def test_who_makes_a_request_sends_it(one, monkeypatch):
    """No other thread has to wake for it."""
    with Client(one.addresses, one.keys) as client:
        table = client.table(CONFIG)
        table.pull(IDS)
        channel, go_on = client._channels[0], threading.Event()
        receive = channel.receive
        monkeypatch.setattr(channel, "receive", lambda: (go_on.wait(), receive()))
        before = one._requests
        try:
            for count in range(1, HURRIED + 1):  # the client's thread is stuck from the first answer on
                table.push(IDS, ONES)
                until(lambda: one._requests == before + count, what="the push")  # noqa: B023
        finally:
            go_on.set()
        np.testing.assert_array_equal(table.pull(IDS), FIRST - HURRIED)


@pytest.mark.parametrize("refused", [1, 3, 1000])
def test_what_a_line_does_not_take_is_sent_by_socket(one, monkeypatch, refused):
    """At once: what is lost would be sent again, too, but not before the test is over."""
    client = Client(one.addresses, one.keys, timeout_s=10 * PATIENCE_S)
    table = client.table(CONFIG)
    table.pull(IDS)
    line = client._channels[0].line
    send, refusals = line.send, iter(range(refused))
    monkeypatch.setattr(line, "send", lambda packet: next(refusals, None) is None and send(packet))

    def train():
        for turn in range(30):
            table.push(IDS, ONES)
            if turn % 3:
                np.testing.assert_array_equal(table.pull(IDS), FIRST - turn - 1)
        table.wait()
        return table.stats().steps

    with ThreadPoolExecutor(1) as pool:
        try:
            assert pool.submit(train).result(PATIENCE_S) == 30
        finally:
            client.close(wait=False)


def test_a_line_that_breaks_is_done_without(one):
    with Client(one.addresses, one.keys, timeout_s=1.0, retries=30) as client:
        table = client.table(CONFIG)
        table.pull(IDS)
        for turn in range(60):
            table.push(IDS, ONES)
            if turn % 10 == 5:
                for line in list(one._exchange._lines.values()):
                    line._socket.shutdown(socket.SHUT_RDWR)
            if turn % 10 == 9:
                np.testing.assert_array_equal(table.pull(IDS), FIRST - turn - 1)
        assert table.stats().steps == 60
        assert client._channels[0].line is None


def test_a_line_that_is_full_is_not_waited_for():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind("\0heterps-test-full")
        door.listen()
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.connect("\0heterps-test-full")
        line = Line(end)
        sent = 0
        while line.send(b"x" * 1000):
            sent += 1
        assert 0 < sent < 10_000
        assert line.alive
        assert not line.send(b"x" * (PACKET_BYTES + 1))
        door.accept()[0].close()
        assert not line.send(b"x")
        assert not line.alive


def test_a_restarted_server_has_another_line():
    keys, context = Keys.generate(), []
    with Server("tcp://127.0.0.1:*", keys, make_table=make_fake).start() as first:
        address = first.addresses[0]
        client = Client([address], keys, timeout_s=0.5, retries=60)
        client.table(CONFIG).pull(IDS)
        context.append(token(first))
    with client, Server(address, keys, make_table=make_fake).start() as second:
        table = client.table(CONFIG)
        for _ in range(3):
            table.pull(IDS)
        until(lambda: lines(second) == 1, what="a new line")
        assert token(second) not in context


@pytest.mark.parametrize("said", [b"", b"x" * 16, b"x" * 5000, "in another's name", None])
def test_who_does_not_know_the_token_has_no_line(one, said):
    """Neither does who has the name, which is no secret, nor who says nothing."""
    with Client(one.addresses, one.keys) as client:
        table = client.table(CONFIG)
        table.pull(IDS)
        strangers = []
        if isinstance(said, str):
            said = b"x" * near.TOKEN_BYTES + client._channels[0]._client
        for _ in range(near.MAX_STRANGERS + 20):
            end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            end.connect(near._name(token(one)))
            strangers.append(end)
            if said is not None:
                with suppress(OSError):  # it may be closed already
                    end.send(said)
                    end.send(wire.encode_request(wire.Request(client._channels[0]._client, 0, []))[0])
            client.stats()
        np.testing.assert_array_equal(table.pull(IDS), FIRST)
        assert lines(one) == 1
        assert len(one._exchange._strangers) <= near.MAX_STRANGERS
        assert client.stats()[0]["malformed"] == 0
        strangers[0].settimeout(5)
        with suppress(ConnectionResetError):
            assert strangers[0].recv(100) == b""  # closed
        for end in strangers:
            end.close()


def test_a_line_speaks_for_its_client_alone(one):
    """Who knows the token, and says things in another's name, or nonsense, stops and changes nothing."""
    source = random.Random(0)
    with Client(one.addresses, one.keys, timeout_s=1.0, retries=30) as client:
        table = client.table(CONFIG)
        table.pull(IDS)
        victim = client._channels[0]._client
        unknown = Line.connect(token(one), os.urandom(16))
        stop = wire.Operation(client._channels[0]._next, "abandon", "t", {}, [])
        assert unknown.send(wire.encode_request(wire.Request(victim, 0, [stop]))[0])
        until(lambda: lines(one) == 1, what="a line of nobody to be closed")
        with Client(one.addresses, one.keys) as other:
            other.table(CONFIG).pull(IDS)
            line = other._channels[0].line
            assert line.send(wire.encode_request(wire.Request(victim, 0, [stop]))[0])
            until(lambda: one._malformed == 1, what="it to be refused")
            for _ in range(300):
                line.send(b"".join(mutate(valid_request(source), source)[:1])[:PACKET_BYTES] or b"x")
            until(lambda: client.stats()[0]["malformed"] > 100, what="nonsense to be refused")
        table.push(IDS, ONES)
        np.testing.assert_array_equal(table.pull(IDS), FIRST - 1)


def test_a_frozen_client_holds_nobody_up(one):
    with Client(one.addresses, one.keys) as client:
        table = client.table(CONFIG)
        table.pull(IDS)
        child = os.fork()
        if not child:  # pragma: no cover
            line = Line.connect(token(one), b"frozen")
            signal.pause()
            os._exit(line is None)
        try:
            until(lambda: lines(one) == 2, what="the other's line")
            for _ in range(10):
                table.push(IDS, ONES)
            np.testing.assert_array_equal(table.pull(IDS), FIRST - 10)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        until(lambda: lines(one) == 1, what="the line to end with its process")


def test_an_exchange_closes_what_it_has():
    exchange = Exchange("00" * 16)
    line = Line.connect("00" * 16, b"c" * 16)
    for _ in range(2):
        for number in exchange.numbers:
            exchange.handle(number)
    assert line.send(b"hello")
    assert exchange.handle(exchange.numbers[0])[1] == [b"hello"]
    exchange.close()
    assert not list(line.receive())
    assert not line.alive
    assert Line.connect("00" * 16, b"c" * 16) is None
