"""Runs on a cluster that somebody follows, or nobody any more."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import ray
from typer.testing import CliRunner

from heterps.cli.main import app
from heterps.runtime import Checkpoints, Result, Settings
from heterps.runtime.cluster import registry
from heterps.runtime.cluster.engine import train_on_ray
from heterps.telemetry import JsonLines, Recorder, read_jsonl
from tests.cluster.counting import Gate, factory, model
from tests.cluster.jobs import PATIENCE_S, PATIENT, of_cluster, wait_for
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan


def command(*args: str) -> str:
    done = CliRunner().invoke(app, [*args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def events(path: Path, name: str) -> list[dict[str, Any]]:
    return [record["fields"] for record in read_jsonl(path) if record["kind"] == "event" and record["name"] == name]


class Background:
    """A gated run that a thread follows."""

    def __init__(self, path: Path, *, steps: int = 40, open_to: int = 10, **options: Any) -> None:
        self.gate, self.telemetry = path / "gate", path / "telemetry.jsonl"
        Gate.open(self.gate, open_to)
        self.found: Result | BaseException | None = None
        self.said = ""
        chain, limits = model(), options.pop("limits", PATIENT)
        recorder = Recorder([JsonLines(self.telemetry)])
        settings = Settings(
            steps=steps, micro_batches=2, optimizer=sgd, recorder=recorder, log_every=5,
            checkpoints=Checkpoints(path=path / "checkpoints", every_steps=10),
        )  # fmt: skip

        def work() -> None:
            with recorder:
                try:
                    self.found = train_on_ray(
                        chain, partial(factory, str(self.gate), steps), make_plan(chain, (2,)), settings, shards=1,
                        limits=limits, bring_back=False, say=self._say, **options,
                    )  # fmt: skip
                except BaseException as error:
                    self.found = error

        self.thread = threading.Thread(target=work)
        self.thread.start()

    def _say(self, line: str) -> None:
        self.said += line

    def open(self, step: int) -> None:
        Gate.open(self.gate, step)

    def result(self) -> Result:
        self.thread.join(PATIENCE_S)
        assert isinstance(self.found, Result), self.found
        return self.found


@contextmanager
def background(path: Path, **options: Any) -> Iterator[Background]:
    run = Background(path, **options)
    try:
        yield run
    finally:
        run.open(10**6)
        run.thread.join(PATIENCE_S)


def status(name: str) -> dict[str, Any]:
    actor = registry.jobs().get(name)
    return (registry.ask(actor, "status") if actor is not None else None) or {}


def told(name: str) -> dict[str, Any]:
    """The status of a job, whose coordinator may be too busy for an answer, or another one, for a while."""
    found: dict[str, Any] = {}

    def asked() -> bool:
        found.update(status(name))
        return bool(found)

    assert wait_for(asked), f"{name} does not answer"
    return found


def nothing_runs() -> bool:
    """Whether no job is there; Ray takes a moment to end one."""
    return wait_for(lambda: not registry.jobs())


def the_coordinator() -> int:
    """The process of the one job that is there; that of an earlier one may take a moment to end."""
    found: list[int] = []

    def alone() -> bool:
        found[:] = of_cluster(os.getpid(), "ray::CoordinatorActor")
        return len(found) == 1

    assert wait_for(alone), found
    return found[0]


def at_checkpoint(name: str, step: int) -> Callable[[], bool]:
    return lambda: ((status(name).get("checkpoint") or {}).get("step") or 0) >= step


DRIVER = """
import sys
from dataclasses import replace
from functools import partial
from heterps.runtime import Checkpoints, Settings
from heterps.runtime.cluster.engine import train_on_ray
from tests.cluster.counting import factory, model
from tests.cluster.jobs import PATIENT
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan
address, path, steps, frozen_s = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
chain = model()
train_on_ray(
    chain, partial(factory, path + "/gate", steps), make_plan(chain, (2,)),
    Settings(
        steps=steps, micro_batches=2, optimizer=sgd, checkpoints=Checkpoints(path=path + "/checkpoints", every_steps=5)
    ),
    address=address, name="orphan", shards=1, bring_back=False,
    limits=replace(PATIENT, frozen_s=frozen_s, tries=10),
)
"""


@contextmanager
def stopped_if_it_fails(name: str) -> Iterator[None]:
    """A job that goes on by itself must not go on beside the next test."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            command("stop", name)
        raise


def orphan(path: Path, *, open_to: int, steps: int = 40, frozen_s: float = PATIENT.frozen_s) -> None:
    """Starts the job `orphan`, whose driver is killed when it has done `open_to` steps."""
    Gate.open(path / "gate", open_to)
    address = ray.get_runtime_context().gcs_address
    command_line = [sys.executable, "-c", DRIVER, address, str(path), str(steps), str(frozen_s)]
    driver = subprocess.Popen(command_line, cwd=Path(__file__).parents[2])
    try:
        assert wait_for(at_checkpoint("orphan", open_to))
    finally:
        driver.kill()
        driver.wait()
