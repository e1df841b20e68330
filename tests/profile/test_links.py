"""Links of this machine, measured with real processes at the other end."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps.errors import HeterPSError
from heterps.models import Bags
from heterps.profile import links
from heterps.profile.links import Served, measure_links, measure_served
from tests.runtime import chains

END_S = 150.0


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[str]]]:
    """The processes that a test starts; none of them outlives it."""
    found: list[subprocess.Popen[str]] = []
    popen = subprocess.Popen

    def start(*args: Any, **options: Any) -> subprocess.Popen[str]:
        found.append(popen(*args, **options))
        return found[-1]

    monkeypatch.setattr(links.subprocess, "Popen", start)
    yield found
    left = [process.args for process in found if process.poll() is None]
    for process in found:
        process.kill()
    assert not left, "processes are left behind"


def test_figures_are_plausible(started: list[subprocess.Popen[str]]) -> None:
    measured = measure_links()
    assert [process.returncode is not None for process in started] == [True] * 3
    assert 0.01 < measured.process_gbps < 10_000
    assert 1e-7 < measured.round_trip_s < 1
    assert 1e6 < measured.all_reduce_bytes_per_s < 1e12
    large_s = 8 * links.MESSAGE_BYTES / (measured.process_gbps * 1e9)
    assert measured.round_trip_s < 16 * large_s, "a byte there and back takes less than 16 large messages"
    assert (measured.host_to_device_gbps is not None) == torch.cuda.is_available()


class Interrupted(BaseException):
    """As Ctrl-C."""


def interrupt(*_: object) -> Any:
    raise Interrupted


@pytest.mark.parametrize("what", ["_between_processes", "_all_reduce"])
def test_an_interruption_ends_the_processes(
    what: str, monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    monkeypatch.setattr(links._Peer, "line", interrupt)
    with pytest.raises(Interrupted):
        getattr(links, what)()
    assert len(started) == (1 if what == "_between_processes" else 2)
    assert all(process.returncode is not None for process in started)


def test_an_interruption_between_messages_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[str]]
) -> None:
    monkeypatch.setattr(links, "_timed_echo", interrupt)
    with pytest.raises(Interrupted):
        links._between_processes()
    assert [process.returncode is not None for process in started] == [True]


def test_a_process_that_ends_early_is_reported() -> None:
    with pytest.raises(HeterPSError, match="the other process ended"), links._peer("no-such-kind") as peer:
        peer.line()


@pytest.mark.parametrize("kind", ["echo", "serve", "reduce"])
def test_a_process_ends_when_nobody_holds_its_input(kind: str, tmp_path: Path) -> None:
    """As when whoever started it was killed."""
    arguments = {"echo": [], "serve": [f"ipc://{tmp_path}/s"], "reduce": [f"{tmp_path}/store", "0"]}[kind]
    process = subprocess.Popen(
        [sys.executable, "-m", "heterps.profile.peer", kind, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    if kind != "reduce":  # which waits for another one, without a word
        assert process.stdout.readline()
    process.stdin.close()
    try:
        assert process.wait(END_S) == 0
    finally:
        process.kill()
        process.stdout.close()


def test_rows_at_a_real_server(started: list[subprocess.Popen[str]]) -> None:
    batches = chains.random_batches(2, size=256, ids=10_000)
    embeddings = [
        chains.embedding("rows"),
        chains.embedding("tags", reads="tags", pooling="sum"),
        chains.embedding("again", reads="more", table="rows"),
    ]
    served = measure_served(embeddings, batches, rounds=3)
    assert served.keys() == {"rows", "tags", "again"}
    for cost in served.values():
        assert 0 < cost.sync_s < 60
        assert 0 < cost.ps_s < 10
    assert [process.returncode is not None for process in started] == [True]
    assert all(layer.table is None for layer in embeddings), "the layers stay unbound"


def test_more_rows_cost_more() -> None:
    def served(size: int) -> Served:
        batches = chains.random_batches(1, size=size, ids=size)
        return measure_served([chains.embedding("rows", dim=64)], batches, rounds=4)["rows"]

    many = served(20_000)
    for _ in range(5):  # few take no time, but where the machine stands still
        few = served(16)
        if few.sync_s < many.sync_s and few.ps_s < many.ps_s:
            break
    assert many.sync_s > few.sync_s
    assert many.ps_s > few.ps_s


def test_empty_bags_are_served() -> None:
    none = Bags(torch.zeros(0, dtype=torch.int64), torch.zeros(9, dtype=torch.int64))
    served = measure_served([chains.embedding("tags", reads="tags", pooling="sum")], [{"tags": none}], rounds=1)
    assert served["tags"].sync_s >= 0


def test_a_failure_ends_the_server(started: list[subprocess.Popen[str]]) -> None:
    with pytest.raises(KeyError):
        measure_served([chains.embedding("rows")], [{"other": torch.zeros(4)}])
    assert [process.returncode is not None for process in started] == [True]
