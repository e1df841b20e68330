"""Clients hear that something waits for others when it matters to them, and mostly not at all."""

from __future__ import annotations

import numpy as np
import pytest

from heterps.ps import server as serving
from tests.ps.running import PATIENCE_S, until
from tests.ps.test_gathering import LARGE, NONE, SMALL, first, ones, replicas  # noqa: F401

NEVER_MS = 10**9


def told(table):
    """Operations without an answer of which the client knows that they wait."""
    return sum(pending.held for pending in list(table._client._channels[0]._flight.values()))


@pytest.fixture
def pair(replicas):  # noqa: F811
    """Two clients that do not ask again while a test goes on: then they are told in any case."""
    (one, two), _ = replicas(2, timeout_s=10 * PATIENCE_S)
    yield one, two
    for table in (one, two):
        table._client.close(wait=False)


@pytest.fixture
def said(monkeypatch):
    """The statuses of all replies."""
    found = []
    answer = serving.Server._answer

    def noted(server, session, replies):
        found.extend(reply.status for reply in replies)
        answer(server, session, replies)

    monkeypatch.setattr(serving.Server, "_answer", noted)
    return found


@pytest.mark.parametrize("ids", [SMALL, LARGE], ids=["messages", "shared memory"])
def test_who_is_answered_soon_is_not_told(pair, monkeypatch, said, ids):
    monkeypatch.setattr(serving, "PATIENCE_MS", NEVER_MS)
    one, two = pair
    for step in range(10):
        coming = [table.pull_after(ids, step) for table in (one, two)]
        one.push_part(ids, ones(ids), step=step, part=0, parts=2)
        two.push_part(ids, ones(ids), step=step, part=1, parts=2)
        for rows in coming:
            np.testing.assert_array_equal(rows.rows(PATIENCE_S), first(ids) - 2 * (step + 1))
    assert "held" not in said
    assert "ok" in said


def test_who_waits_for_long_is_told(pair, said):
    one, two = pair
    one.push_part(SMALL, ones(SMALL), step=0, part=0, parts=2)
    until(lambda: told(one) == 1, what="being told")
    assert said.count("held") == 1
    two.push_part(NONE, ones(NONE), step=0, part=1, parts=2)
    one.wait()
    np.testing.assert_array_equal(one.pull(SMALL), first(SMALL) - 1)


def test_who_waits_for_much_is_told_when_the_server_looks(pair, monkeypatch):
    """Else it could send nothing more: only so many messages and bytes may be on the way.

    A server that has work looks every PATIENCE_MS, or as here when a client asks it something.
    """
    monkeypatch.setattr(serving, "PATIENCE_MS", NEVER_MS)
    one, two = pair
    for step in range(serving.UNTOLD + 1):
        one.push_part(SMALL, ones(SMALL), step=step, part=0, parts=2)
    until(lambda: two._client.stats() and told(one) >= serving.UNTOLD, what="being told")
    monkeypatch.setattr(serving, "UNTOLD_BYTES", SMALL.nbytes)
    two.push_part(SMALL, ones(SMALL), step=99, part=1, parts=2)
    until(lambda: told(two) == 1, what="being told of many bytes")
