"""Faults at random moments of a driven run, how long each holds it up, and whether anything is lost by them."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import torch

from heterps.models import Chain
from heterps.runtime.restore import restore
from tests.cluster.counting import BATCH, COUNTER, Gate, batches, model
from tests.cluster.driver import Spec
from tests.cluster.inprocess import run_here
from tests.cluster.jobs import PATIENCE_S, title_of, wait_for
from tests.cluster.machines import Hosts, Machines, root
from tests.runtime.chains import IDS
from tests.runtime.plain import rows_of, sgd
from tests.runtime.plans import make_plan

REPLICA, SHARD, COORDINATOR = "ray::ReplicaActor", "ray::ShardActor", "ray::CoordinatorActor"
KINDS = ("worker", "shard", "coordinator", "node", "freeze")
WITH_CUTS = (*KINDS, "cut")
PER_FAULT = 40
"""Steps that pass between two faults at most: a run is as long as its faults."""
RECOVERS_S = 60.0
"""What the project promises, of a machine that does nothing else."""
ENDS_S = PATIENCE_S
"""Within which these processes of a machine that was given up are gone, once it is back."""
ENDING = ("ray::", "raylet/raylet")


@dataclass(frozen=True)
class Fault:
    """What happened, at which checkpoint, and the seconds until a later one was committed by new processes."""

    kind: str
    step: int
    seconds: float


class Driven:
    """A run in a process of its own, beside the head of a cluster."""

    def __init__(self, machines: Machines, path: Path, spec: Spec) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.machines, self.spec, self._file = machines, spec, path / "spec.json"
        self._log = path / "driver.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*machines.prefix, sys.executable, "-m", "tests.cluster.driver", str(spec.save(self._file))],
                cwd=root(), env=machines.environment, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def step(self) -> int:
        """Of the newest checkpoint; 0 before the first."""
        with suppress(FileNotFoundError):
            return int((Path(self.spec.checkpoints) / "latest").read_text().removeprefix("step-"))
        return 0

    def check(self) -> None:
        """It has not ended by an error."""
        assert self._process.poll() in (None, 0), self._log.read_text()

    def wait(self, seconds: float) -> list[float]:
        """Its losses, when it has ended."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the run has not ended after {seconds:.0f} s:\n{self._log.read_text()}") from None
        self.check()
        losses: list[float] = json.loads(self._file.with_suffix(".result").read_text())
        return losses

    def kill(self) -> None:
        """Ends it, whatever it does."""
        self._process.kill()
        self._process.wait()


def spec_of(machines: Machines, path: Path, faults: int, replicas: tuple[int, int]) -> Spec:
    """A run that is long enough for so many faults."""
    path.mkdir(parents=True, exist_ok=True)
    gate = path / "gate"
    Gate.open(gate, 0)
    return Spec(
        address=machines.address, checkpoints=str(path / "checkpoints"), steps=(faults + 2) * PER_FAULT,
        gate=str(gate), replicas=replicas,
    )  # fmt: skip


def unbroken(path: Path, spec: Spec) -> tuple[Chain, list[float]]:
    """The same run without faults, as threads of this process; its losses too."""
    plan = make_plan(model(), (2,), units=list(spec.replicas))
    chain, losses, _ = run_here(
        model, batches(spec.steps), plan, steps=spec.steps, micro_batches=spec.micro_batches, shards=spec.shards,
        replicas=list(spec.replicas), path=path, optimizer=sgd,
    )  # fmt: skip
    return chain, losses


class Injector:
    """Breaks a run, again and again, in an order that a seed gives."""

    def __init__(self, run: Driven, seed: int) -> None:
        self.run, self.machines, self.rng = run, run.machines, random.Random(seed)
        self.faults: list[Fault] = []
        self._chores: list[tuple[float, Callable[[], None]]] = []

    def suffer(self, kinds: tuple[str, ...], *, within_s: float) -> None:
        """One fault after the other, each at a random moment after the last one is made good."""
        self._open(1)
        assert wait_for(lambda: self._check() and self.run.step > 0), "no first checkpoint"
        for number, kind in enumerate(kinds):
            if kind in ("node", "cut"):  # two thirds of the machines hold the run, one third does not
                assert wait_for(self._do_chores, seconds=2 * ENDS_S)
            time.sleep(self.rng.uniform(0.0, 1.5))
            before, step, began = set(self._replicas()), self.run.step, time.monotonic()
            self._break(kind)
            self._open(number + 2)
            again = wait_for(lambda: self._goes_on(before, step), seconds=2 * within_s)  # noqa: B023
            self.faults.append(Fault(kind, step, time.monotonic() - began))
            assert again, f"{kind} at step {step}: no checkpoint for {2 * within_s:.0f} s"
        self._open(len(kinds) + 3)
        assert wait_for(self._do_chores, seconds=2 * ENDS_S)

    def _open(self, faults: int) -> None:
        assert self.run.spec.gate is not None
        Gate.open(Path(self.run.spec.gate), faults * PER_FAULT)

    def _check(self) -> bool:
        self.run.check()
        return True

    def _replicas(self) -> dict[int, str]:
        return self.machines.of_title(REPLICA)

    def _goes_on(self, before: set[int], step: int) -> bool:
        """New processes have made a new checkpoint."""
        self._check()
        self._do_chores()
        return self.run.step > step and bool(now := set(self._replicas())) and not now & before

    def _break(self, kind: str) -> None:
        if kind in ("node", "cut"):
            name = self.rng.choice(sorted(self._held()))
            self._kill(name) if kind == "node" else self._cut(name)
            return
        title = {"shard": SHARD, "coordinator": COORDINATOR}.get(kind, REPLICA)
        assert wait_for(lambda: bool(self.machines.of_title(title))), f"no {title}"
        victim = self.rng.choice(sorted(self.machines.of_title(title)))
        os.kill(victim, signal.SIGSTOP if kind == "freeze" else signal.SIGKILL)

    def _held(self) -> set[str]:
        """Machines with processes of the run."""
        assert wait_for(lambda: bool(self._replicas()))
        return {name for title in (REPLICA, SHARD) for name in self.machines.of_title(title).values()} - {"head"}

    def _kill(self, name: str) -> None:
        self.machines.kill(name)
        self._plan(self.rng.uniform(0.0, 8.0), lambda: self.machines.start(name))

    def _cut(self, name: str) -> None:
        assert isinstance(self.machines, Hosts)
        hosts, old = self.machines, set(self.machines.pids(name))
        hosts.cut(name)

        def mend() -> None:
            hosts.mend(name)
            self._plan(0.0, start, mended=time.monotonic())

        def start(mended: float) -> None:
            """Anew, as a service of the machine would do it, when Ray has ended there."""
            left = [pid for pid in old & set(hosts.pids(name)) if any(one in title_of(pid) for one in ENDING)]
            if left:
                waited = time.monotonic() - mended
                assert waited < ENDS_S, f"{name}: {[title_of(pid)[:80] for pid in left]} outlive their Ray"
                self._plan(0.5, start, mended=mended)
            else:
                hosts.kill(name)  # Ray's reader of logs, which stays
                hosts.start(name)

        self._plan(self.rng.uniform(12.0, 20.0), mend)

    def _plan(self, seconds: float, call: Callable[..., None], **arguments: float) -> None:
        """A call for later; in this thread, as Ray's nodes want it."""
        self._chores.append((time.monotonic() + seconds, partial(call, **arguments)))

    def _do_chores(self) -> bool:
        """Those whose time has come; whether none is left."""
        due, now = [], time.monotonic()
        for chore in list(self._chores):
            if chore[0] <= now:
                due.append(chore[1])
                self._chores.remove(chore)
        for call in due:
            call()
        return not self._chores


def survive(
    machines: Machines, path: Path, kinds: tuple[str, ...], *, seed: int, replicas: tuple[int, int] = (2, 1),
    within_s: float = PATIENCE_S,
) -> list[Fault]:  # fmt: skip
    """A run with these faults: each is made good in time, and the run ends as one without them."""
    spec = spec_of(machines, path / "broken", len(kinds), replicas)
    driven = Driven(machines, path / "broken", spec)
    injector = Injector(driven, seed)
    try:
        injector.suffer(kinds, within_s=within_s)
        losses = driven.wait(2 * PATIENCE_S)
    finally:
        driven.kill()
    chain, (whole, expected) = trained(spec), unbroken(path / "unbroken", spec)
    assert_exactly_once(chain, spec)
    assert_exactly_once(whole, spec)
    assert losses == expected
    assert_equal(chain, whole)
    late = [fault for fault in injector.faults if fault.seconds > within_s]
    assert not late, late
    assert wait_for(lambda: not any(map(machines.of_title, (REPLICA, SHARD, COORDINATOR)))), "processes are left"
    return injector.faults


def trained(spec: Spec) -> Chain:
    """The model with the weights and rows of the newest checkpoint."""
    chain = model()
    restore(chain, Path(spec.checkpoints) / (Path(spec.checkpoints) / "latest").read_text().strip())
    return chain


def counts(chain: Chain, samples: int) -> torch.Tensor:
    """How often each sample was used; one more of them than there are, which is never used."""
    return rows_of(chain, COUNTER, samples + 1).reshape(-1)


def assert_exactly_once(chain: Chain, spec: Spec) -> None:
    found = counts(chain, spec.steps * BATCH)
    assert torch.equal(found[:-1], torch.ones(spec.steps * BATCH)), f"used otherwise: {(found[:-1] != 1).nonzero()}"
    assert found[-1] == 0


def assert_equal(one: Chain, two: Chain) -> None:
    """To the last bit: dense weights and rows."""
    ours, theirs = one.state_dict(), two.state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name
    assert torch.equal(rows_of(one, "rows", IDS), rows_of(two, "rows", IDS)), "rows"


def table(faults: list[Fault]) -> str:
    """Of kinds: how many, and the seconds until training went on."""
    lines = [f"{'fault':<12}{'times':>6}{'median s':>10}{'worst s':>9}"]
    for kind in dict.fromkeys(fault.kind for fault in faults):
        seconds = [fault.seconds for fault in faults if fault.kind == kind]
        lines.append(f"{kind:<12}{len(seconds):>6}{median(seconds):>10.1f}{max(seconds):>9.1f}")
    every = [fault.seconds for fault in faults]
    lines.append(f"{'all':<12}{len(every):>6}{median(every):>10.1f}{max(every):>9.1f}")
    return "\n".join(lines)
