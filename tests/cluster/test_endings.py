"""How runs on a cluster end: once, for good, and told to whoever still follows."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")

import ray
from ray.util.placement_group import placement_group, remove_placement_group

from heterps.errors import Infeasible
from heterps.runtime.cluster import engine, registry
from heterps.runtime.cluster.follow import Follower
from heterps.runtime.cluster.policy import Limits
from heterps.runtime.settings import Settings
from tests.cluster.background import (
    background,
    command,
    nothing_runs,
    orphan,
    status,
    stopped_if_it_fails,
    the_coordinator,
    told,
)
from tests.cluster.counting import Gate
from tests.cluster.jobs import PATIENCE_S, PATIENT, of_cluster, wait_for

pytestmark = pytest.mark.usefixtures("cluster")


def kill_the_coordinator() -> None:
    """Ray starts another one, which answers when this returns."""
    coordinator = the_coordinator()
    os.kill(coordinator, signal.SIGKILL)
    assert wait_for(lambda: of_cluster(os.getpid(), "ray::CoordinatorActor") not in ([], [coordinator]))
    assert told("orphan")


def test_a_run_that_is_over_stays_over(tmp_path: Path):
    """It ended while nobody followed, and its coordinator dies: the next one only has its result to tell."""
    orphan(tmp_path, open_to=10)
    with stopped_if_it_fails("orphan"):
        Gate.open(tmp_path / "gate", 40)
        assert wait_for(lambda: status("orphan").get("state") == "over")
        kill_the_coordinator()
        assert wait_for(lambda: status("orphan").get("state") == "over")
        assert (told("orphan")["step"], told("orphan")["attempts"]) == (40, 1)
    with background(tmp_path, open_to=40) as run:
        result = run.result()
    assert (result.steps, len(result.losses), result.stopped) == (40, 40, "done")
    assert nothing_runs()


def test_one_who_asks_for_more_gets_more(tmp_path: Path):
    """A run that has done less than is asked for is over, and another one goes on from its checkpoint."""
    orphan(tmp_path, open_to=10, steps=20)
    with stopped_if_it_fails("orphan"):
        Gate.open(tmp_path / "gate", 40)
        assert wait_for(lambda: status("orphan").get("state") == "over")
    with background(tmp_path, open_to=40) as run:
        result = run.result()
    assert (result.steps, len(result.losses)) == (40, 20)
    assert nothing_runs()


def test_a_stop_is_heard_by_the_next_coordinator(tmp_path: Path):
    """And the same command afterwards goes on, instead of telling that the run was stopped."""
    orphan(tmp_path, open_to=10)
    with stopped_if_it_fails("orphan"):
        registry.ask(registry.job("orphan"), "stop", within_s=PATIENCE_S)
        kill_the_coordinator()
        assert wait_for(lambda: status("orphan").get("state") == "over")
        assert told("orphan")["step"] == 10
    with background(tmp_path, open_to=40) as run:
        assert (run.result().steps, run.result().stopped) == (40, "done")


def test_stop_dismisses_a_run_that_nobody_follows(tmp_path: Path):
    """Also if somebody did until a moment ago."""
    orphan(tmp_path, open_to=10)
    with stopped_if_it_fails("orphan"):
        Gate.open(tmp_path / "gate", 15)
        assert "orphan: stopped, saved at step 1" in command("stop", "orphan")
        assert nothing_runs()


def test_two_may_follow_a_run(tmp_path: Path):
    """The first to have its result leaves the other one's to it."""
    with background(tmp_path) as one:
        assert wait_for(lambda: status("train").get("step") == 10)
        with background(tmp_path) as other:
            assert wait_for(lambda: "under way" in other.said)
            other.open(40)
            assert other.result().losses == one.result().losses
    assert nothing_runs()


@contextmanager
def all_cores_taken() -> Iterator[None]:
    """By another job."""
    nodes = [node["Resources"]["CPU"] for node in ray.nodes() if node["Alive"] and "CPU" in node["Resources"]]
    group = placement_group([{"CPU": cores} for cores in nodes])
    assert group.wait(PATIENCE_S)
    try:
        yield
    finally:
        remove_placement_group(group)


def test_a_run_that_waits_for_other_jobs_can_be_stopped(tmp_path: Path):
    with all_cores_taken(), background(tmp_path, open_to=40, limits=PATIENT) as run:
        assert wait_for(lambda: status("train").get("state") == "waiting for machines")
        assert command("stop", "train") == "train: stopped before its first checkpoint\n"
        assert (run.result().stopped, run.result().steps) == ("interrupted", 0)


def test_a_run_starts_when_other_jobs_have_ended(tmp_path: Path):
    with ExitStack() as others:
        others.enter_context(all_cores_taken())  # before it starts
        with background(tmp_path, open_to=40, limits=PATIENT) as run:
            assert wait_for(lambda: status("train").get("state") == "waiting for machines")
            others.close()
            assert run.result().steps == 40


def test_other_jobs_that_do_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No try of a run that never had its machines counts as a failure: it ends with what to do."""

    def follower(actor: Any, settings: Settings, limits: Limits) -> Follower:
        return Follower(actor, settings, replace(limits, start_s=PATIENCE_S))  # its process may start slowly

    monkeypatch.setattr(engine, "Follower", follower)
    with all_cores_taken(), background(tmp_path, open_to=40, limits=replace(PATIENT, start_s=4.0)) as run:
        run.thread.join(PATIENCE_S)
        assert isinstance(run.found, Infeasible)
        assert "other jobs had the machines for 4 s; stop them, plan for less, or --wait longer" in str(run.found)
