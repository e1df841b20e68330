"""Numbers and replies: what makes a request sent twice apply once."""

from __future__ import annotations

import numpy as np

from heterps.ps import sessions
from heterps.ps.sessions import Session, Sessions, Verdict
from heterps.ps.wire import Reply


def test_operations_come_in_order_and_once():
    session = Session(window=10)
    assert session.judge(0) is Verdict.NEW
    assert session.judge(0) is Verdict.BUSY
    assert session.judge(2) is Verdict.GAP
    assert session.judge(1) is Verdict.NEW
    session.finish(Reply(0, "ok"))
    assert session.judge(0) is Verdict.REPEAT
    session.hear(1, (0, b"new"))
    assert (session.judge(0), session.route) == (Verdict.STALE, (0, b"new"))
    assert session.judge(1) is Verdict.BUSY


def test_a_window_bounds_what_is_in_work():
    session = Session(window=2)
    assert [session.judge(seq) for seq in range(3)] == [Verdict.NEW, Verdict.NEW, Verdict.BUSY]
    session.finish(Reply(0, "ok"))
    assert session.judge(2) is Verdict.NEW


def test_a_client_is_met_in_the_middle_of_its_life_and_may_give_up():
    session = Sessions(window=10).hear(bytes(16), 7, (0, b"a"))
    assert session.judge(7) is Verdict.NEW
    session.hear(20, (0, b"a"))
    assert session.judge(20) is Verdict.NEW


def test_large_replies_are_not_kept_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(sessions, "REMEMBERED_BYTES", 1000)
    session = Session(window=10)
    for seq in range(3):
        assert session.judge(seq) is Verdict.NEW
        session.finish(Reply(seq, "ok", None, [np.zeros(60)]))
    assert [session.judge(seq) for seq in range(3)] == [Verdict.REPEAT, Verdict.REPEAT, Verdict.LOST]
    session.hear(2, (0, b""))
    assert session.remembered_bytes == 0


def test_what_was_done_before_a_restart_is_known_after_it():
    before = Sessions(window=10)
    session = before.hear(b"a" * 16, 0, (0, b""))
    session.judge(0)
    after = Sessions(window=10)
    after.restore(before.to_dict())
    assert after.hear(b"a" * 16, 0, (0, b"")).judge(0) is Verdict.LOST


def test_the_clients_heard_of_longest_ago_are_forgotten(monkeypatch):
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    known = Sessions(window=10)
    busy = known.hear(b"busy" * 4, 0, (0, b""))
    busy.judge(0)
    for number in range(10):
        known.hear(bytes([number]) * 16, 0, (0, b""))
    assert len(known) == 3
    assert known.hear(b"busy" * 4, 0, (0, b"")) is busy


def test_replies_of_the_clients_heard_of_longest_ago_are_dropped_first(monkeypatch):
    """1000 bytes for all: rows are dropped, and read again when asked for; results without rows stay."""
    monkeypatch.setattr(sessions, "KEPT_BYTES", 1000)
    known = Sessions(window=10)
    each = [known.hear(bytes([number]) * 16, 0, (0, b"")) for number in range(3)]
    for session in each:
        for seq, rows in enumerate(([], [np.zeros(60)])):
            session.judge(seq)
            known.finish(session, Reply(seq, "ok", None, rows))
    assert known.kept_bytes == 960
    assert [session.judge(1) for session in each] == [Verdict.LOST, Verdict.REPEAT, Verdict.REPEAT]
    assert all(session.judge(0) is Verdict.REPEAT for session in each)
    known.hear(each[2].client, 2, (0, b""))
    assert known.kept_bytes == 480
    known.hear(each[1].client, 2, (0, b""))
    assert known.kept_bytes == 0


def test_without_room_for_its_reply_an_operation_waits():
    session = Session(window=10)
    assert session.judge(0, room=False) is Verdict.BUSY
    assert session.judge(0) is Verdict.NEW
    session.finish(Reply(0, "ok", None, [np.zeros(60)]))
    assert session.judge(0, room=False) is Verdict.BUSY
    assert session.judge(0) is Verdict.REPEAT
