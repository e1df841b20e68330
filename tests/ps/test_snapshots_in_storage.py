"""Tables on servers, saved to storage behind a URL: each server puts and gets its own shard."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterps.errors import HeterPSError, InvalidInput
from heterps.ps import Client
from heterps.runtime import Checkpoints
from heterps.runtime.checkpoint import CheckpointFailed, State, Store
from heterps.store import SparseTable
from heterps.store.config import TableConfig
from tests import bucket
from tests.ps.clock import moved_by_answers
from tests.ps.running import PATIENCE_S, Process, have_patience, until

IDS = np.arange(1000)
SLOW, PLAIN = "tests.ps.stored:make_slow", "tests.ps.stored:make_plain"


@contextmanager
def servers(directory: Path, shards: int, *, make: str = PLAIN) -> Iterator[tuple[Client, list[Process]]]:
    with ExitStack() as stack:
        started = []
        for _ in range(shards):
            started.append(Process(directory, make=make))
            stack.callback(started[-1].kill)
        addresses = [server.address for server in started]
        yield stack.enter_context(Client(addresses, started[0].keys, timeout_s=1.0, retries=150)), started


def config(name: str = "t") -> TableConfig:
    return SparseTable(dim=4, optimizer="sgd", lr=1.0, name=name).config


def push(table: Any, value: float, ids: np.ndarray = IDS) -> None:
    table.push(ids, np.full((len(ids), 4), value, np.float32))


@pytest.mark.parametrize("kind", ["bucket", "folder"])
@pytest.mark.parametrize("target", [1, 2, 3])
def test_from_any_number_of_shards_to_any_other(target: int, kind: str, tmp_path: Path):
    """With a delta on top; and nothing of the rows passes through the client."""
    whole, delta = (bucket.url(tmp_path / "storage" / name, kind) for name in ("whole", "delta"))
    seen: list[str] = []

    def watch(verb: str, path: str) -> None:
        if verb in ("put", "get"):
            seen.append(Path(path).name)

    bucket.before.append(watch)
    try:
        with servers(tmp_path / "two", 2) as (client, _):
            table = client.table(config())
            push(table, 1.0)
            table.save(whole)
            push(table, 2.0, IDS[:100])
            table.save(delta, delta=True)
            rows = table.pull(IDS)
        with servers(tmp_path / "others", target) as (client, _):
            table = client.table(config())
            with pytest.raises(InvalidInput, match=r"delta://|/delta.*a delta on top of snapshot"):
                table.load(delta)
            table.load(whole)
            table.load(delta)
            np.testing.assert_array_equal(table.pull(IDS, create=False), rows)
            assert table.stats().rows == len(IDS)
            push(table, 1.0)
            table.save(whole)
            table.load(whole)
            np.testing.assert_array_equal(table.pull(IDS, create=False), rows - 1)
    finally:
        bucket.before.remove(watch)
    assert set(seen) == {"manifest.json"}
    left = [path.name for path in (tmp_path / "storage" / "whole").iterdir() if path.suffix == ".hps"]
    assert len(left) == target, "older files are removed"


def test_a_server_gets_its_own_shard_alone_where_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As many servers as wrote the snapshot; others get all of it."""
    url, log = bucket.url(tmp_path / "snapshot"), tmp_path / "log"
    monkeypatch.setenv("BUCKET_LOG", str(log))
    with servers(tmp_path / "a", 2) as (client, _):
        table = client.table(config())
        push(table, 1.0)
        table.save(url)
    for shards, each in ((2, 1), (3, 2)):
        log.unlink()
        with servers(tmp_path / "b", shards) as (client, _):
            client.table(config()).load(url)
        got = [line.split() for line in log.read_text().splitlines() if " get shard-" in line]
        assert len(got) == shards * each
        assert len({process for process, *_ in got}) == shards


def test_broken_and_missing_shards_are_named(tmp_path: Path):
    url, folder = bucket.url(tmp_path / "snapshot"), tmp_path / "snapshot"
    with servers(tmp_path / "a", 2) as (client, _):
        table = client.table(config())
        push(table, 1.0)
        table.save(url)
        (second,) = folder.glob("shard-00001-of-00002-*")
        second.write_bytes(second.read_bytes()[:50])
        with pytest.raises(HeterPSError, match=rf"bucket://.*{second.name}.*cut short"):
            table.load(url)
        second.unlink()
        with pytest.raises(InvalidInput, match=rf"manifest\.json: its files {second.name} are missing"):
            table.load(url)


def test_no_delta_after_an_upload_that_failed(tmp_path: Path):
    """The table takes its rows for saved: a delta of what came later would lack them."""
    blocked = tmp_path / "blocked"
    with servers(tmp_path / "a", 1) as (client, _):
        table = client.table(config())
        push(table, 1.0)
        table.save(bucket.url(tmp_path / "one"))
        push(table, 1.0, IDS[:10])
        blocked.write_text("")
        with pytest.raises(HeterPSError, match=r"bucket://.*blocked"):
            table.save(bucket.url(blocked), delta=True)
        with pytest.raises(InvalidInput, match="a delta needs a snapshot before it"):
            table.save(bucket.url(tmp_path / "two"), delta=True)
        table.save(bucket.url(tmp_path / "two"))


def test_a_server_killed_while_it_uploads(tmp_path: Path):
    """The checkpoint before stays, and other servers, another number of them, take it up."""
    url, marker, halfway = bucket.url(tmp_path / "checkpoints"), tmp_path / "stop", tmp_path / "halfway"
    name, failed = str(marker), []
    state = State(step=4, samples=4, position=None)
    with servers(tmp_path / "a", 2, make=SLOW) as (client, processes):
        store, table = Store(Checkpoints(path=url)), client.table(config(name))
        push(table, 1.0)
        store.save(state, {name: table})
        rows = table.pull(IDS)
        push(table, 1.0, IDS[:100])
        marker.write_text("")

        def save() -> None:
            try:
                store.save(State(step=8, samples=8, position=None), {name: table})
            except CheckpointFailed as error:
                failed.append(error)

        saving = threading.Thread(target=save)
        saving.start()
        until(halfway.exists, what="an upload that is halfway")
        have_patience(client, 1.0, 3)
        for process in processes:
            process.process.send_signal(signal.SIGKILL)
        saving.join(PATIENCE_S)
        marker.unlink()
    assert "step-000000008" in str(failed[0])
    with servers(tmp_path / "b", 3, make=SLOW) as (client, _):
        store, table = Store(Checkpoints(path=url)), client.table(config(name))
        newest = store.newest()
        assert newest is not None
        assert store.load(newest, {name: table}).step == 4
        np.testing.assert_array_equal(table.pull(IDS, create=False), rows)
        push(table, 1.0)
        store.save(State(step=5, samples=5, position=None), {name: table})
        assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] != []
        assert not (tmp_path / "checkpoints" / "step-000000008" / "state.json").exists()
    own = SparseTable(dim=4, optimizer="sgd", lr=1.0, name=name)
    store = Store(Checkpoints(path=url))
    newest = store.newest()
    assert newest is not None
    assert store.load(newest, {name: own}).step == 5
    np.testing.assert_array_equal(own.pull(IDS, create=False), rows - 1)


def test_an_upload_may_take_long(tmp_path: Path):
    """Longer than the client waits for a server that is quiet: it hears that the server is at work."""
    marker, halfway = tmp_path / "stop", tmp_path / "halfway"
    with servers(tmp_path / "a", 1, make=SLOW) as (client, _):
        table = client.table(config(str(marker)))
        push(table, 1.0)
        table.wait()
        marker.write_text("")
        have_patience(client, 0.2, 2)
        with moved_by_answers(client) as clock:
            done = threading.Thread(target=table.save, args=(bucket.url(tmp_path / "snapshot"),))
            done.start()
            until(halfway.exists, what="an upload that is halfway")
            clock.move()
            until(lambda: clock.passed >= 30 or not done.is_alive(), what="answers")  # ten times the patience
            assert done.is_alive()
            marker.unlink()
            done.join(PATIENCE_S)
        assert (tmp_path / "snapshot" / "manifest.json").exists()
