"""What actors of tests run: chains and batches, and data that kills whoever reads it."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from heterps.models import Batch
from heterps.runtime.cluster.policy import Limits
from tests.runtime import reference

Fault = tuple[str, int]
"""What happens (kill, freeze, kill-shard, kill-coordinator), and before which batch."""


def zoo_model(name: str) -> tuple[Any, Any]:
    return reference.build(name), reference.batches(name)


def faulty_model(name: str, folder: str, faults: tuple[Fault, ...]) -> tuple[Any, Any]:
    data = Faulty(reference.batches(name), Path(folder), faults)
    data.begin()
    return reference.build(name), data


def broken_model() -> tuple[Any, Any]:
    """Its first dense layer raises."""
    chain, batches = zoo_model("ctrdnn")
    layer = next(layer for layer in chain.layers if layer.name == "fc1")
    layer.forward = lambda *values: 1 / 0
    return chain, batches


def mistaken_model(folder: str) -> tuple[Any, Any]:
    """Raises, and leaves a file for each time."""
    Path(tempfile.mkstemp(prefix="tried-", dir=folder)[1]).touch()
    return reference.no_such_model(), None  # type: ignore[attr-defined]


def slow_model(name: str, folder: str) -> tuple[Any, Any]:
    """In the first process that computes, a dense layer takes its time."""
    chain, data = reference.build(name), reference.batches(name) * 4
    layer = next(layer for layer in chain.layers if layer.name == "fc1")
    forward, mine = layer.forward, Faulty([], Path(folder), ())

    def slowly(*values: Any) -> Any:
        if not hasattr(mine, "slow"):
            mine.slow = mine._claim(0)  # type: ignore[attr-defined]
        time.sleep(0.2 if mine.slow else 0.01)  # type: ignore[attr-defined]
        return forward(*values)

    layer.forward = slowly
    return chain, data


class Faulty:
    """Batches; whoever is the first to read one with a fault suffers it, once in the whole test."""

    def __init__(self, batches: list[Batch], folder: Path, faults: tuple[Fault, ...]) -> None:
        self.batches, self.folder, self.faults = batches, folder, {at: kind for kind, at in faults}

    def begin(self) -> None:
        """Whoever is the first to make the data suffers what comes "before batch -1"."""
        if -1 in self.faults and self._claim(-1):
            suffer(self.faults[-1])

    def __iter__(self) -> Iterator[Batch]:
        for number, batch in enumerate(self.batches):
            if number in self.faults and self._claim(number):
                suffer(self.faults[number])
            yield batch

    def _claim(self, number: int) -> bool:
        """Whether this process is the first one here, on all machines of the test."""
        try:
            os.close(os.open(self.folder / f"fault-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


def suffer(kind: str) -> None:
    if kind in ("kill-shard", "kill-coordinator"):
        title = "ray::ShardActor" if kind == "kill-shard" else "ray::CoordinatorActor"
        os.kill(beside_me(title)[0], signal.SIGKILL)
    else:
        os.kill(os.getpid(), {"kill": signal.SIGKILL, "freeze": signal.SIGSTOP}[kind])


def beside_me(title: str) -> list[int]:
    """Processes of the same Ray cluster as this one: their raylet has the same parent as ours."""
    return of_cluster(parent(parent(os.getpid())), title)


def of_cluster(driver: int, title: str) -> list[int]:
    """Processes of the Ray cluster that a driver started."""
    return [pid for pid in processes(title) if parent(parent(pid)) == driver]


def processes(title: str) -> list[int]:
    """Processes whose command line holds some text."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return sorted(pid for pid in pids if title in title_of(pid))


def title_of(pid: int) -> str:
    """The command line of a process; empty if it is gone."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def parent(pid: int) -> int:
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return -1


PATIENCE_S = 150.0
"""What no healthy run needs for anything, however busy the machine: processes have taken half a minute to start."""

PATIENT = Limits(tries=5, frozen_s=60.0, boot_s=PATIENCE_S, start_s=PATIENCE_S, pause_s=0.1)
"""A machine that stalls for a while freezes nobody: for runs that shall need no restart but those that a test wants."""


def wait_for(condition: Callable[[], bool], *, seconds: float = PATIENCE_S) -> bool:
    """Looks until a condition of other processes is met, or time is up."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
