"""Clients that hand in parts and ask for rows at desks: in shared memory, and with no message."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps.errors import InvalidInput
from heterps.ps import desk
from heterps.ps.client import Client
from heterps.ps.desk import Asked, Desk
from heterps.ps.errors import ServerError, ServerTimeout
from heterps.ps.remote import RemoteTable
from heterps.ps.server import Server
from heterps.store import SparseTable
from heterps.store.config import Optimizer, TableConfig
from tests.ps.fakes import make_fake
from tests.ps.running import PATIENCE_S, ROOT, Process, until

CONFIG = TableConfig(name="t", dim=4, optimizer=Optimizer(name="sgd", lr=1.0), init_scale=0.0)
"""Rows begin at zero, so that counts of gradients stay exact."""
IDS = np.arange(4000)
NONE = np.empty(0, np.int64)

Meet = Callable[..., tuple[list[RemoteTable], list[Server]]]


def first(ids: np.ndarray) -> np.ndarray:
    return SparseTable.from_config(CONFIG).pull(ids)


def ones(ids: np.ndarray) -> np.ndarray:
    return np.ones((*ids.shape, 4), np.float32)


def has_desks(table: RemoteTable) -> bool:
    return all(isinstance(one, Desk) for one in table._open_desks())


def held(table: RemoteTable) -> int:
    """Bytes of its client's memory beside its desks."""
    client: Any = table._client
    arena = client._arena
    blocks = [end - start for start, end, _ in arena._taken if arena._marks[start]]
    return sum(blocks) - sum(nbytes for nbytes in blocks if nbytes >= desk._native.DESK_BYTES)


@pytest.fixture
def meet(tmp_path: Path) -> Iterator[Meet]:
    """meet(clients, shards=1): a table of each client, of which each has one part of a step; and the servers."""
    with ExitStack() as stack:

        def make(
            clients: int, shards: int = 1, *, options: dict[int, dict[str, Any]] | None = None,
            make_table: Any = None, **server: Any,
        ) -> tuple[list[RemoteTable], list[Server]]:  # fmt: skip
            given = {} if make_table is None else {"make_table": make_table}
            binds = [f"ipc://{tmp_path}/sockets/{k}" for k in range(shards)]
            servers = [stack.enter_context(Server(bind, **given, **server).start()) for bind in binds]
            tables = []
            for number in range(clients):
                own = (options or {}).get(number, {})
                client = stack.enter_context(Client(binds, timeout_s=5.0, retries=30, **own))
                tables.append(client.table(CONFIG))
            for number, table in enumerate(tables):
                table.meet(step=0, own=[number], parts=clients)
            return tables, servers

        yield make


@pytest.mark.parametrize("shards", [1, 2])
def test_a_step_costs_no_message(meet: Meet, shards: int):
    tables, servers = meet(2, shards)
    assert all(map(has_desks, tables))
    asked = [server._requests for server in servers]
    for step in range(5):
        coming = [table.pull_after(IDS, step - 1) for table in tables]
        for part, (table, rows) in enumerate(zip(tables, coming, strict=True)):
            np.testing.assert_array_equal(rows.rows(PATIENCE_S), first(IDS) - 2 * step)
            table.push_part(IDS, ones(IDS), step=step, part=part, parts=2, coming=rows)
    for table in tables:
        table.wait()
    assert [server._requests for server in servers] == asked
    np.testing.assert_array_equal(tables[0].pull(IDS), first(IDS) - 10)
    assert tables[0].stats().steps == 5 * shards // shards


def test_rows_come_when_the_step_is_over(meet: Meet):
    (one, two), _ = meet(2)
    early = [table.pull_after(IDS, 0) for table in (one, two)]
    late = two.pull_after(IDS, 1)
    one.push_part(IDS, ones(IDS), step=0, part=0, parts=2)
    with pytest.raises(ServerTimeout):
        one.pull_after(IDS, 0).rows(0.2)
    np.testing.assert_array_equal(one.pull(IDS), first(IDS))  # other pulls wait for nothing
    two.push_part(NONE, ones(NONE), step=0, part=1, parts=2)
    for coming in early:
        np.testing.assert_array_equal(coming.rows(PATIENCE_S), first(IDS) - 1)
    np.testing.assert_array_equal(one.pull_after(IDS, 0).rows(PATIENCE_S), first(IDS) - 1)  # it is over already
    two.push_part(IDS, ones(IDS), step=1, part=1, parts=2)
    one.push_part(IDS[:7], ones(IDS[:7]), step=1, part=0, parts=2, lr=3.0)
    np.testing.assert_array_equal(late.rows(PATIENCE_S), first(IDS) - 4 - 3 * (IDS < 7)[:, None])


def test_one_client_may_have_several_parts(meet: Meet):
    (one, two), _ = meet(2)
    assert has_desks(one)
    one.meet(step=3, own=[0, 2], parts=3)
    two.meet(step=3, own=[1], parts=3)
    assert has_desks(two)
    for part in (2, 0):
        one.push_part(IDS, ones(IDS), step=3, part=part, parts=3)
    two.push_part(IDS, ones(IDS), step=3, part=1, parts=3).wait(PATIENCE_S)
    np.testing.assert_array_equal(one.pull(IDS), first(IDS) - 3)


def test_ids_of_the_callers_may_change(meet: Meet):
    """From when the rows are asked for on."""
    (one,), _ = meet(1)
    ids = IDS.copy()
    coming = one.pull_after(ids, -1)
    ids += 1_000_000
    np.testing.assert_array_equal(coming.rows(PATIENCE_S), first(IDS))
    one.push_part(ids, ones(ids), step=0, part=0, parts=1, coming=coming)
    np.testing.assert_array_equal(one.pull_after(IDS, 0).rows(PATIENCE_S), first(IDS) - 1)
    assert one.stats().rows == len(IDS)


@pytest.mark.parametrize("why", ["a client shares nothing", "the server shares nothing", "no clerk"])
def test_if_not_all_can_all_send_messages(meet: Meet, why: str):
    options = {1: {"shared": False}} if why == "a client shares nothing" else {}
    (one, two), (server,) = meet(
        2,
        options=options,
        shared=why != "the server shares nothing",
        make_table=make_fake if why == "no clerk" else None,
    )
    assert not has_desks(one)
    asked = server._requests
    for step in range(3):
        coming = [table.pull_after(IDS, step - 1) for table in (one, two)] if step else []
        for rows in coming:
            np.testing.assert_array_equal(rows.rows(PATIENCE_S), one.pull(IDS))
        for part, table in enumerate((one, two)):
            known = coming[part] if coming else None
            table.push_part(IDS, ones(IDS), step=step, part=part, parts=2, coming=known)
    two.wait()
    assert server._requests - asked >= 6
    assert one.stats().steps == 3


def test_memory_comes_back(meet: Meet):
    """Of rows when nobody looks into them, of ids and gradients when they are applied, of rows nobody wanted, too."""
    (one, two), _ = meet(2)
    kept = one.pull_after(IDS, -1).rows(PATIENCE_S)
    one.pull_after(IDS, -1)._futures[0].exception(PATIENCE_S)  # come, and forgotten
    assert held(one) < 2 * (kept.nbytes + IDS.nbytes)
    part = kept[5:]
    del kept
    others = [one.pull_after(IDS, -1).rows(PATIENCE_S) for _ in range(3)]  # are written elsewhere
    np.testing.assert_array_equal(part, first(IDS)[5:])
    del part, others
    for step in range(20):
        coming = [table.pull_after(IDS, step - 1) for table in (one, two)]
        for number, (table, rows) in enumerate(zip((one, two), coming, strict=True)):
            rows.rows(PATIENCE_S)
            table.push_part(IDS, ones(IDS), step=step, part=number, parts=2, coming=rows)
    one.wait()
    del coming, rows
    assert held(one) == held(two) == 0


def test_what_the_clerk_may_still_write_to_stays_taken(meet: Meet):
    (one, two), _ = meet(2)
    coming = one.pull_after(IDS, 0)
    with pytest.raises(ServerTimeout):
        coming.rows(0.01)
    del coming
    assert held(one) >= IDS.nbytes + 16 * len(IDS)
    for part, table in enumerate((one, two)):
        table.push_part(IDS, ones(IDS), step=0, part=part, parts=2)
    two.wait()
    np.testing.assert_array_equal(two.pull(IDS), first(IDS) - 2)


def test_no_room_is_said_in_the_end(meet: Meet, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("heterps.ps.client.Arena", lambda: desk.Arena(1 << 18))
    (one,), _ = meet(1)
    assert has_desks(one)
    monkeypatch.setattr(desk, "ROOM_S", 0.05)
    coming = [one.pull_after(IDS, -1)]
    with pytest.raises(ServerTimeout, match="take smaller batches"):
        coming += [one.pull_after(IDS, -1) for _ in range(5)]
    del coming
    np.testing.assert_array_equal(one.pull_after(IDS, -1).rows(PATIENCE_S), first(IDS))


def test_parts_that_do_not_fit_are_refused(meet: Meet):
    (one, two), _ = meet(2)
    one.push_part(IDS, ones(IDS), step=3, part=0, parts=2)
    for table, step, part, says in (
        (two, 3, 0, "part 0 of step 3 is here already"),
        (two, 3, 7, "part 7 does not exist"),
    ):
        with pytest.raises(ServerError, match=says):
            table.push_part(IDS, ones(IDS), step=step, part=part, parts=8).wait(PATIENCE_S)
    with pytest.raises(InvalidInput, match="lr"):
        two.push_part(IDS, ones(IDS), step=3, part=1, parts=2, lr=-1.0)
    two.push_part(IDS, ones(IDS), step=3, part=1, parts=2).wait(PATIENCE_S)
    with pytest.raises(ServerError, match="step 3 is over"):
        two.push_part(IDS, ones(IDS), step=3, part=1, parts=2).wait(PATIENCE_S)
    with pytest.raises(ServerError):  # the first one that nobody has heard of
        two.wait()
    np.testing.assert_array_equal(one.pull(IDS), first(IDS) - 2)


def test_messages_are_refused_where_there_are_desks(meet: Meet):
    (one,), (server,) = meet(1)
    assert has_desks(one)
    with Client(server.addresses) as other:
        stranger = other.table(CONFIG)
        for call in (
            lambda: stranger.pull_after(IDS, 5).rows(PATIENCE_S),
            lambda: stranger.push_part(IDS, ones(IDS), step=0, part=0, parts=1).wait(PATIENCE_S),
        ):
            with pytest.raises(InvalidInput, match="at desks"):
                call()
        np.testing.assert_array_equal(stranger.pull(IDS, create=False), first(IDS))


def test_what_is_open_is_abandoned_with_the_rest(meet: Meet, tmp_path: Path):
    (one, two), _ = meet(2)
    one.pull(IDS)
    one.save(tmp_path / "snapshot")
    for give_up in (two.abandon, lambda: two.load(tmp_path / "snapshot")):
        coming = one.pull_after(IDS, 0)
        ticket = one.push_part(IDS, ones(IDS), step=0, part=0, parts=2)
        give_up()
        for wait in (lambda: coming.rows(PATIENCE_S), lambda: ticket.wait(PATIENCE_S)):  # noqa: B023
            with pytest.raises(ServerError, match="abandoned"):
                wait()
        late = [one.push_part(NONE, ones(NONE), step=step, part=0, parts=2) for step in range(300)]
        for ticket in late:  # more than a desk holds
            with pytest.raises(ServerError, match="abandoned"):
                ticket.wait(PATIENCE_S)
        while one._outstanding._tickets:
            with pytest.raises(ServerError):
                one.wait()
        for number, table in enumerate((one, two)):
            table.meet(step=0, own=[number], parts=2)
    np.testing.assert_array_equal(one.pull(IDS), first(IDS))
    for number, table in enumerate((one, two)):
        table.push_part(IDS, ones(IDS), step=0, part=number, parts=2)
    one.wait()
    np.testing.assert_array_equal(one.pull(IDS), first(IDS) - 2)


def test_a_meeting_begins_anew_when_somebody_comes_again(meet: Meet):
    """Who died before all had met is replaced; the others come again, too."""
    (one, two), _ = meet(2)
    assert has_desks(one)
    one.meet(step=5, own=[0], parts=2)  # and is started anew
    one.meet(step=7, own=[0], parts=2)
    two.meet(step=7, own=[1], parts=2)
    assert has_desks(one)
    for number, table in enumerate((one, two)):
        table.push_part(IDS, ones(IDS), step=7, part=number, parts=2)
    two.wait()
    np.testing.assert_array_equal(one.pull(IDS), first(IDS) - 2)


@pytest.mark.parametrize(
    "args",
    [
        {"step": 0, "own": [], "parts": 1}, {"step": 0, "own": [1], "parts": 1}, {"step": -1, "own": [0], "parts": 1},
        {"step": 0, "own": [0, 0], "parts": 2}, {"step": 0, "own": ["0"], "parts": 1}, {"step": 0, "own": [0]},
        {"step": 0, "own": [0], "parts": 0}, {"step": 0, "own": [0], "parts": 2**40}, {"own": [0], "parts": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_meeting_that_makes_no_sense_is_refused(meet: Meet, args: dict[str, Any]):
    (one,), _ = meet(1)
    client: Any = one._client
    with pytest.raises(InvalidInput):
        client.submit(0, "meet", "t", {**args, "desk": None}).result(PATIENCE_S)


@pytest.mark.parametrize("place", [0, 64, 128 + 8, 2**34, 2**63 - 64])
def test_a_desk_that_lies_nowhere_is_refused(meet: Meet, place: int):
    (one,), _ = meet(1)
    client: Any = one._client
    with pytest.raises(ServerError, match="outside of the client's memory"):
        client.submit(0, "meet", "t", {"step": 0, "own": [0], "parts": 1, "desk": place}).result(PATIENCE_S)
    np.testing.assert_array_equal(one.pull(IDS), first(IDS))


def test_orders_for_memory_that_is_none_hurt_nobody(meet: Meet):
    (one, two), _ = meet(2)
    core = next(own for own in one._open_desks() if own is not None)._core
    for ids, rows, count in ((0, 4096, 10), (4096, 2**34, 10), (4100, 8192, 10), (4096, 8192, 2**61), (2**63, 64, 1)):
        asked = core.ask(-1, count, ids, rows, 0, 1000)
        part = core.part(0, 0, count, ids, rows, None, 1000)
        for order in (asked, part):
            until(lambda: core.wait(order, 100) is False, what="a refusal")  # noqa: B023
            assert "outside of the client's memory" in core.why(order)
    nothing = core.ask(-1, 0, 2**63, 64, 0, 1000)
    until(lambda: core.wait(nothing, 100), what="an answer to nothing")
    for number, table in enumerate((one, two)):
        table.push_part(IDS, ones(IDS), step=0, part=number, parts=2)
    np.testing.assert_array_equal(two.pull_after(IDS, 0).rows(PATIENCE_S), first(IDS) - 2)


MEMBER = """
import sys, numpy as np
from heterps.ps.client import Client
from heterps.ps.keys import Keys
from heterps.store.config import TableConfig
client = Client([sys.argv[1]], Keys.load(sys.argv[2]))
table = client.table(TableConfig.from_dict(eval(sys.argv[3])))
table.meet(step=0, own=[1], parts=2)
ids, grads = np.arange(4000), np.ones((4000, 4), np.float32)
for step in range(3):
    coming = table.pull_after(ids, step - 1)
    coming.rows()
    if step < 2:
        table.push_part(ids, grads, step=step, part=1, parts=2, coming=coming)
print("sent", flush=True)
sys.stdin.read()
"""


def test_a_client_that_is_killed_leaves_whole_steps(tmp_path: Path):
    """Counters as gradients: what had all parts is applied once, and of the step that lacks one nothing."""
    server = Process(tmp_path)
    try:
        with Client([server.address], server.keys) as a, Client([server.address], server.keys) as b:
            one, two = a.table(CONFIG), b.table(CONFIG)
            command = [sys.executable, "-c", MEMBER, server.address, str(server.key_file), repr(CONFIG.to_dict())]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            try:
                one.meet(step=0, own=[0], parts=2)
                assert has_desks(one)
                for step in range(3):
                    one.push_part(IDS, ones(IDS), step=step, part=0, parts=2)
                assert process.stdout is not None
                assert process.stdout.readline() == "sent\n"
            finally:
                process.kill()
                process.communicate()
            one.wait_for(1, timeout_s=PATIENCE_S)
            with pytest.raises(ServerTimeout, match="step 2"):
                one.wait_for(2, timeout_s=0.5)
            np.testing.assert_array_equal(two.pull(IDS), first(IDS) - 4)
            two.abandon()
            with pytest.raises(ServerError, match="abandoned"):
                one.wait()
            for number, table in enumerate((one, two)):  # a new attempt, from the step that is lost
                table.meet(step=2, own=[number], parts=2)
            for number, table in enumerate((one, two)):
                table.push_part(IDS, ones(IDS), step=2, part=number, parts=2)
            two.wait()
            np.testing.assert_array_equal(one.pull(IDS), first(IDS) - 6)
            assert one.stats().steps == 3
    finally:
        server.kill()


def test_a_server_that_is_killed_is_noticed(tmp_path: Path):
    server = Process(tmp_path)
    try:
        with Client([server.address], server.keys, timeout_s=PATIENCE_S) as client:
            table = client.table(CONFIG)
            table.meet(step=0, own=[0], parts=2)
            with Client([server.address], server.keys) as other:
                other.table(CONFIG).meet(step=0, own=[1], parts=2)
                assert has_desks(table)
                coming = table.pull_after(IDS, 0)
                server.kill()
                with pytest.raises(ServerError, match="the server is gone"):
                    coming.rows(PATIENCE_S)
                other.close(wait=False)
            client.close(wait=False)
    finally:
        server.kill()


def test_a_server_that_is_frozen_goes_on(tmp_path: Path):
    server = Process(tmp_path)
    try:
        with Client([server.address], server.keys) as client:
            table = client.table(CONFIG)
            table.meet(step=0, own=[0], parts=1)
            assert has_desks(table)
            server.freeze()
            coming = table.pull_after(IDS, 0)
            ticket = table.push_part(IDS, ones(IDS), step=0, part=0, parts=1)
            with pytest.raises(ServerTimeout):
                coming.rows(0.2)
            assert not ticket.done
            server.process.send_signal(signal.SIGCONT)
            np.testing.assert_array_equal(coming.rows(PATIENCE_S), first(IDS) - 1)
            ticket.wait(PATIENCE_S)
    finally:
        server.process.send_signal(signal.SIGCONT)
        server.kill()


def test_many_orders_wait_for_room(meet: Meet):
    """More than a desk holds, of a step that comes late."""
    (one, two), _ = meet(2)
    few = IDS[:3]
    for step in range(250):
        one.push_part(few, ones(few), step=step, part=0, parts=2)
    for step in range(250):
        two.push_part(few, ones(few), step=step, part=1, parts=2)
    for table in (one, two):
        table.wait()
    for step in range(250, 800):
        for part, table in enumerate((one, two)):
            table.push_part(few, ones(few), step=step, part=part, parts=2)
    one.wait()
    two.wait()
    np.testing.assert_array_equal(one.pull(few), first(few) - 1600)


def test_a_run_asks_at_desks(meet: Meet):
    """What `pull_after` gives is an order; its ids serve one part."""
    (one,), _ = meet(1)
    coming = one.pull_after(IDS, -1)
    (asked,) = coming._futures
    assert isinstance(asked, Asked)
    coming.rows(PATIENCE_S)
    for step in range(2):
        one.push_part(IDS, ones(IDS), step=step, part=0, parts=1, coming=coming).wait(PATIENCE_S)
    assert asked.spent
    np.testing.assert_array_equal(one.pull(IDS), first(IDS) - 2)
