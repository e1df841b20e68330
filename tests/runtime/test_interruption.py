"""Runs that are killed or interrupted in processes of their own: they go on as if nothing had happened."""

from __future__ import annotations

import multiprocessing
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps.runtime import Checkpoints, train
from tests.runtime.chains import random_batches, small
from tests.runtime.job import job
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan

ROOT = Path(__file__).parents[2]
STEPS = 9
LIMIT_S = 150.0
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.runtime.job", "torch._dynamo"])  # which optimizers import at their first step


def start(*args: Any, **options: Any) -> Any:
    process = processes.Process(target=job, args=args, kwargs=options, daemon=True)
    process.start()
    return process


def ended(process: Any) -> int:
    """The exit code; a process that does not end in time is a failure."""
    process.join(LIMIT_S)
    if process.exitcode is None:
        process.kill()
        pytest.fail("the run hangs")
    return process.exitcode


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("unbroken")
    assert ended(start(path / "checkpoints", path / "result", STEPS)) == 0
    return torch.load(path / "result")


def assert_same(result: Path, unbroken: dict[str, Any]) -> None:
    found = torch.load(result)
    assert (found["steps"], found["stopped"]) == (STEPS, "done")
    assert found["losses"] == unbroken["losses"][len(unbroken["losses"]) - len(found["losses"]) :]
    for name, weight in unbroken["weights"].items():
        assert torch.equal(found["weights"][name], weight), name


@pytest.mark.parametrize("kill_at", [1, 3, *range(90, 126)])
def test_a_run_killed_between_any_two_of_its_file_operations(kill_at: int, tmp_path: Path, unbroken: dict[str, Any]):
    """While it writes, renames or removes checkpoints: at its start, and at every point of one save."""
    killed = ended(start(tmp_path / "checkpoints", tmp_path / "result", STEPS, kill_at=kill_at))
    assert killed in (-signal.SIGKILL, 0), "0: it has fewer of them"
    assert ended(start(tmp_path / "checkpoints", tmp_path / "result", STEPS)) == 0
    assert_same(tmp_path / "result", unbroken)
    assert not list((tmp_path / "checkpoints").glob(".*"))


@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_again_and_again(seed: int, tmp_path: Path, unbroken: dict[str, Any]):
    """At random moments, until it gets through."""
    rng = random.Random(seed)
    kills = 0
    while True:
        process = start(tmp_path / "checkpoints", tmp_path / "result", STEPS)
        process.join(rng.uniform(0.0, 0.4) if kills < 6 else LIMIT_S)
        if process.exitcode is not None:
            break
        process.kill()
        ended(process)
        kills += 1
    assert process.exitcode == 0
    assert_same(tmp_path / "result", unbroken)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM], ids=lambda kind: kind.name)
def test_an_interrupted_run_saves_and_ends(kind: signal.Signals, tmp_path: Path):
    """As a user has it: a process, its own main thread, Ctrl-C."""
    checkpoints, result = tmp_path / "checkpoints", tmp_path / "result"
    command = [
        sys.executable,
        "-m",
        "tests.runtime.job",
        checkpoints,
        result,
        "100000000",
        '{"every_steps": 1000000000}',
    ]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        process.send_signal(kind)
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    found = torch.load(result)
    assert found["stopped"] == "interrupted"
    assert (checkpoints / "latest").read_text() == f"step-{found['steps']:09d}"
    chain = small()
    batches = random_batches(6)
    again = train(chain, batches, make_plan(chain, (1, 3)), micro_batches=2, lr=0.01, steps=found["steps"] + 3,
                  checkpoints=Checkpoints(path=checkpoints))  # fmt: skip
    assert len(again.losses) == 3


class Interrupting:
    """Batches; a signal comes in the middle of them."""

    def __init__(self, at: int, times: int = 1) -> None:
        self.at, self.times = at, times

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(random_batches(20)):
            if number == self.at:
                for _ in range(self.times):
                    signal.raise_signal(signal.SIGINT)
            yield batch


def test_the_step_at_hand_is_finished():
    before = signal.getsignal(signal.SIGINT)
    result = train(small(), Interrupting(7), optimizer=sgd)
    assert (result.stopped, result.steps, len(result.losses)) == ("interrupted", 8, 8)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_is_the_usual_one():
    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        train(small(), Interrupting(7, times=2), make_plan(5, (1, 3)), optimizer=sgd, clip_norm=1.0)
    assert set(threading.enumerate()) <= before


def test_a_run_in_another_thread_leaves_signals_alone():
    results = []
    thread = threading.Thread(target=lambda: results.append(train(small(), random_batches(4), optimizer=sgd)))
    thread.start()
    thread.join(LIMIT_S)
    assert results[0].steps == 4


def test_no_evaluation_after_an_interrupt():
    result = train(small(), Interrupting(2), optimizer=sgd, evaluation=random_batches(2))
    assert result.evaluations == []
