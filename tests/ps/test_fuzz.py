"""A running server, fed with nonsense: it lives, does not grow, and other clients' values stay."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import zmq

from heterps.ps import wire
from heterps.ps.client import Client
from heterps.ps.keys import protect
from heterps.store.config import Optimizer, TableConfig
from tests.ps.fakes import FakeTable
from tests.ps.messages import Neighbour, mutate, valid_request
from tests.ps.running import FAKE, PATIENCE_S, Process, until

CONFIG = TableConfig(name="mine", dim=4, optimizer=Optimizer(name="sgd", lr=1.0), init_scale=1.0)
FLIGHT = 100
"""Messages sent before replies are read."""
LAST = 123_456_789
"""Number of the operation whose reply ends a round."""


def fuzz(server: Process, messages: int, seed: int) -> int:
    """Sends messages, reads whatever comes back; returns how many replies came."""
    source, near = random.Random(seed), Neighbour()
    replies = 0
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        protect(dealer, server.address, server.keys, server=False)
        dealer.connect(server.address)
        for number in range(messages):
            frames = mutate(valid_request(source, near), source) or [b""]
            dealer.send_multipart(frames)
            if number % FLIGHT == FLIGHT - 1:
                while dealer.poll(0):
                    near.hear(dealer.recv_multipart())
                    replies += 1
        last = wire.Operation(LAST, "stats", "", {})
        dealer.send_multipart(wire.encode_request(wire.Request(bytes(16), LAST, [last])))
        while dealer.poll(1000 * PATIENCE_S):
            replies += 1
            if any(reply.seq == LAST for reply in near.hear(dealer.recv_multipart())):
                assert near.view is not None
                return replies
    raise AssertionError(f"seed {seed}: no answer to the last message\n{server.log[-2000:]}")


def run(directory: Path, messages: int, rounds: int) -> list[int]:
    """Fuzzes in rounds, checking another client between them; returns the server's memory after each."""
    server = Process(directory, make=FAKE)
    sizes = []
    try:
        with Client([server.address], server.keys, timeout_s=20.0) as client:
            table = client.table(CONFIG)
            ids = np.arange(100)
            for turn in range(rounds):
                table.push(ids, np.ones((100, 4), np.float32))
                assert fuzz(server, messages // rounds, seed=turn) > messages // rounds // 4
                np.testing.assert_array_equal(table.pull(ids), FakeTable(CONFIG).pull(ids) - turn - 1)
                assert server.process.poll() is None
                sizes.append(server.rss_bytes)
            stats = client.stats()[0]
            assert stats["malformed"] > messages // 10
            assert stats["shared_bytes"] < 8 << 20
            until(lambda: client.stats()[0]["queued_bytes"] == 0, what="the last requests")
        assert server.terminate() == 0, server.log[-2000:]
        assert "Traceback" not in server.log
    finally:
        server.kill()
    return sizes


def test_nonsense_hurts_nobody(tmp_path):
    run(tmp_path, 4000, 2)


@pytest.mark.soak
def test_a_million_messages_leak_nothing(tmp_path):
    """Memory settles in the first fifth (sessions are bounded, the fuzzed table has 1000 ids): no growth after it."""
    sizes = run(tmp_path, 1_000_000, 10)
    assert sizes[-1] - sizes[1] < 16 << 20, [size >> 20 for size in sizes]
