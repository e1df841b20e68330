"""Without the keys of a run nobody reads, writes or stops anything of it: at the real sockets of runs under way."""

from __future__ import annotations

import gc
import json
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heterps.models import Chain
from heterps.ps import Client, Keys
from heterps.runtime import Checkpoints, Settings
from heterps.runtime.cluster.replica import Replica
from tests.cluster import inprocess
from tests.cluster.counting import Gate, batches, factory, model
from tests.cluster.driver import Spec
from tests.cluster.faults import COORDINATOR, REPLICA, SHARD, assert_equal, assert_exactly_once, trained, unbroken
from tests.cluster.jobs import PATIENCE_S, PATIENT, of_cluster, title_of
from tests.cluster.strangers import (
    READY,
    WELCOME,
    Tape,
    Where,
    doors,
    foreign_clients,
    giant_frame,
    idlers,
    knock_at_door,
    language,
    listening,
    random_bytes,
    rss_bytes,
    until,
)
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan

STEPS, HELD = 60, 30
"""Steps of a run, and the step before which it waits while strangers try."""
ENOUGH = 100_000
"""Bytes of conversations: many steps of them."""
GROWTH = 48 << 20
"""Bytes by which a process may grow meanwhile, whoever calls: buffers, not what strangers send (128 MiB each)."""


def watched_factory(gate: str, folder: str) -> tuple[Any, Any]:
    """The model; tells the test the keys of the process it is made in, which nobody else could."""
    for held in gc.get_objects():
        if isinstance(held, Keys):
            draft = Path(folder) / f".keys-{os.getpid()}"
            draft.write_text(json.dumps(asdict(held)))
            draft.replace(Path(folder) / "keys.json")
    return factory(gate, STEPS)


def start(spec: Spec, path: Path) -> Callable[[], Any]:
    """A run on the cluster, in a thread; gives how to wait for its end."""
    from heterps.runtime.cluster.engine import train_on_ray

    pool, chain = ThreadPoolExecutor(1), model()
    running = pool.submit(
        train_on_ray, chain, partial(watched_factory, spec.gate, str(path)),
        make_plan(chain, (2,), units=list(spec.replicas)),
        Settings(
            steps=spec.steps, micro_batches=spec.micro_batches, optimizer=sgd,
            checkpoints=Checkpoints(path=spec.checkpoints, every_steps=10),
        ),
        replicas=list(spec.replicas), shards=spec.shards, bring_back=False, limits=PATIENT,
    )  # fmt: skip
    pool.shutdown(wait=False)
    return partial(running.result, 2 * PATIENCE_S)


def processes_of_run() -> dict[int, str]:
    found = {pid: title for title in (REPLICA, SHARD, COORDINATOR) for pid in of_cluster(os.getpid(), title)}
    return dict(sorted(found.items()))


@pytest.mark.usefixtures("cluster")
def test_strangers_at_the_sockets_of_a_run(tmp_path: Path):
    """Of all its processes: noise, giant frames, idle callers and clients with other keys change nothing."""
    gate = tmp_path / "gate"
    Gate.open(gate, HELD)
    spec = Spec(
        address="", checkpoints=str(tmp_path / "checkpoints"), steps=STEPS, gate=str(gate), replicas=(1, 1), shards=1
    )
    result = start(spec, tmp_path)
    until(lambda: (Path(spec.checkpoints) / "latest").exists() and (tmp_path / "keys.json").exists(), what="a start")
    found = processes_of_run()
    keys = Keys(**json.loads((tmp_path / "keys.json").read_text()))
    spoken = {where: (pid, language(where)) for pid in found for where in listening(pid)}
    assert {how for _, how in spoken.values()} <= {"zmtp", "http2"}, "a socket that asks nobody for keys"
    ours = {where: pid for where, (pid, how) in spoken.items() if how == "zmtp"}
    assert set(ours.values()) >= {pid for pid, title in found.items() if title != COORDINATOR}
    before = {pid: rss_bytes(pid) for pid in found}
    near = {pid: doors(pid) for pid in found}
    assert all(name.startswith("@heterps-") for names in near.values() for name in names), near
    assert {pid for pid, names in near.items() if names} == set(ours.values())
    attack(ours, keys, {pid: title_of(pid) for pid in found})
    for name in [name for names in near.values() for name in names]:
        knock_at_door(name, random.Random(6))
    assert {pid: rss_bytes(pid) - size for pid, size in before.items() if rss_bytes(pid) - size > GROWTH} == {}
    assert processes_of_run() == found, "something was stopped"
    Gate.open(gate, STEPS)
    losses = result().losses
    chain, (whole, expected) = trained(spec), unbroken(tmp_path / "unbroken", spec)
    assert_exactly_once(chain, spec)
    assert losses == expected
    assert_equal(chain, whole)


def attack(ours: Mapping[Where, int], keys: Keys, titles: Mapping[int, str]) -> None:
    rng = random.Random(5)
    shards = [f"tcp://{host}:{port}" for (host, port), pid in ours.items() if SHARD in titles[pid]]
    for where in ours:
        random_bytes(where, rng)
        giant_frame(where)
        with idlers(where, 200):
            for knock in foreign_clients(where, keys):
                knock()
            if f"tcp://{where[0]}:{where[1]}" in shards:
                with Client([f"tcp://{where[0]}:{where[1]}"], keys) as friend:  # whom the same socket lets in
                    until(lambda friend=friend: friend.stats()[0]["refused"] >= 3, what="all refused")


class Bugged(Replica):
    """A replica whose connections go through tapes."""

    tapes: list[Tape]
    lock = threading.Lock()

    def connect(self, addresses: Mapping[Any, Any], shards: Sequence[str]) -> None:
        through = {seat: replace(address, mail=self._tape(address.mail)) for seat, address in addresses.items()}
        super().connect(through, [self._tape(address) for address in shards])

    def _tape(self, address: str) -> str:
        tape = Tape(address)
        with self.lock:
            self.tapes.append(tape)
        return tape.address


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tape]]:
    """Of all connections of the runs of a test."""
    Bugged.tapes = made = []
    monkeypatch.setattr(inprocess, "Replica", Bugged)
    yield made
    for tape in made:
        tape.close()


def test_a_replayed_conversation_is_nothing(tmp_path: Path, tapes: list[Tape]):
    """Whoever has recorded every byte of a connection cannot use them again: not one update, not one answer."""
    gate = tmp_path / "gate"
    Gate.open(gate, HELD)
    spec = Spec(address="", checkpoints="", steps=STEPS, gate=str(gate))
    plan = make_plan(model(), (2,), units=list(spec.replicas))
    ended: list[tuple[Chain, list[float], Any]] = []
    run = threading.Thread(
        target=lambda: ended.append(
            inprocess.run_here(
                lambda: model(str(gate)), batches(STEPS), plan, steps=STEPS, micro_batches=spec.micro_batches,
                shards=spec.shards, replicas=list(spec.replicas), path=tmp_path / "run", optimizer=sgd, share=False,
            )
        )
    )  # fmt: skip
    run.start()
    try:
        until(lambda: sum(READY in tape.heard for tape in tapes) > 5, what="conversations")
        until(lambda: sum(tape.bytes_said for tape in tapes) > ENOUGH, what="updates")
        for tape in [tape for tape in tapes if READY in tape.heard]:
            assert READY not in tape.replay_at_once()
            answer = tape.replay_in_turn()
            assert WELCOME in answer, "that far anybody gets who knows the server's public key"
            assert READY not in answer
    finally:
        Gate.open(gate, STEPS)
        run.join(2 * PATIENCE_S)
    (chain, losses, _), (whole, expected) = ended[0], unbroken(tmp_path / "unbroken", spec)
    assert_exactly_once(chain, spec)
    assert losses == expected
    assert_equal(chain, whole)
