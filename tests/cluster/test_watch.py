"""Errors of processes and of the coordinator's own threads: which of them would come again after a restart."""

from __future__ import annotations

import errno
import os
from concurrent.futures import Future
from typing import Any

import pytest

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")
from ray.exceptions import RayTaskError

from heterps.errors import InvalidInput
from heterps.ps import InvalidRequest
from heterps.runtime.checkpoint import CheckpointFailed
from heterps.runtime.cluster import watch
from heterps.runtime.cluster.mail import PeerLost
from heterps.runtime.cluster.policy import Frozen, Limits, Raised
from heterps.runtime.cluster.watch import Failed, Watch
from heterps.runtime.pipeline import StageFailed

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def raised(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Failed:
    """What the watch makes of an error that an actor raised."""
    told = RayTaskError("begin", "Traceback", error, proctitle="ray::ReplicaActor", pid=1, ip="127.0.0.1")

    def get(_: Any) -> None:
        raise told.as_instanceof_cause()

    monkeypatch.setattr(watch.ray, "get", get)
    with pytest.raises(Failed) as found:
        Watch(Limits())._get("stage 0 replica 1", object())
    return found.value


class Silent:
    """An actor that was heard once, and then never answers again."""

    class beat:  # noqa: N801
        @staticmethod
        def options(**_: Any) -> Any:
            return Silent.beat

        @staticmethod
        def remote() -> object:
            return object()


def test_time_in_which_the_coordinator_stood_still_is_nobodys_silence(monkeypatch: pytest.MonkeyPatch):
    now, heard = 0.0, True
    monkeypatch.setattr(watch.ray, "wait", lambda calls, **_: (calls if heard else [], []))
    monkeypatch.setattr(watch.ray, "get", lambda _: 0)
    looking = Watch(Limits(frozen_s=15.0), clock=lambda: now)
    looking.add("replica", Silent)
    looking.tick()
    heard = False
    now = 100.0  # a stall of this process
    looking.tick()
    while now < 112.75:  # of silence 98 s do not count
        now += 0.25
        looking.tick()
    now = 113.25
    with pytest.raises(Failed) as failed:
        looking.tick()
    assert isinstance(failed.value.event, Frozen)


@pytest.mark.parametrize(
    "error",
    [AttributeError("no x"), KeyError("no x"), TypeError("no x"), ZeroDivisionError("no x"), ValueError("no x")],
)
def test_a_mistake_in_code_would_come_again(error: Exception, monkeypatch: pytest.MonkeyPatch):
    error.add_note("in the user's words")
    failed = raised(error, monkeypatch)
    words = f"stage 0 replica 1 failed: {type(error).__name__}: {error} (in the user's words)"
    assert failed.event == Raised("stage 0 replica 1", words, True)
    assert isinstance(failed.error, StageFailed)
    assert str(failed.error) == words


@pytest.mark.parametrize(
    "error", [FULL, ConnectionResetError("gone"), TimeoutError("late"), MemoryError("no x"), RuntimeError("NCCL")]
)
def test_files_connections_and_libraries_may_pass(error: Exception, monkeypatch: pytest.MonkeyPatch):
    failed = raised(error, monkeypatch)
    assert failed.event == Raised("stage 0 replica 1", f"{type(error).__name__}: {error}", False)


@pytest.mark.parametrize(
    ("error", "final"),
    [
        (InvalidInput("no x"), True), (StageFailed("no x"), True), (InvalidRequest("no x"), False),
        (PeerLost("no x"), False), (CheckpointFailed("no x"), False),
    ],
)  # fmt: skip
def test_errors_of_ours_keep_their_words(error: Exception, final: bool, monkeypatch: pytest.MonkeyPatch):
    assert raised(error, monkeypatch).event == Raised("stage 0 replica 1", "no x", final)


@pytest.mark.parametrize("error", [FULL, CheckpointFailed("no x")])
def test_a_thread_of_the_coordinator_that_meets_a_full_disk_is_a_failure(error: Exception):
    future: Future[None] = Future()
    future.set_exception(error)
    with pytest.raises(Failed) as failed:
        Watch(Limits()).future(future)
    assert isinstance(failed.value.event, Raised)
    assert not failed.value.event.final
    assert failed.value.error is error
