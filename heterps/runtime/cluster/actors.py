"""Replicas and shards as Ray actors: each in a process of its own, with a thread that answers whoever watches."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from heterps.ps import Keys
from heterps.ps.actor import ShardActor
from heterps.runtime.cluster._ray import CONTROL, SERVE, actor, node_host
from heterps.runtime.cluster.cores import allowed, own_cores, stay
from heterps.runtime.cluster.guard import Guard
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.replica import Replica
from heterps.runtime.cluster.work import Address, Progress, Work

SWITCH_S = 0.0002
"""How long a replica's thread may keep others waiting for the interpreter. With Python's own 5 ms messages wait for the
thread that computes: steps of 9.3 ms then take 8.7 (measured, two replicas of a small tower; servers gain nothing)."""


class ReplicaActor:
    """A `Replica` in a process of its own. Ray never restarts it: a new attempt has new ones."""

    def __init__(
        self, work: Work, seat: Seat, keys: Keys, attempt: int, guarded: tuple[str, float] | None = None
    ) -> None:
        """Makes the replica; `guarded` has it look after the coordinator of a name, with a patience in seconds."""
        sys.setswitchinterval(SWITCH_S)
        self._seat, self._layout = seat, work.layout
        self._replica = Replica(work, seat, keys, attempt, node_host())
        self._guard = None if guarded is None else Guard(*guarded)

    def open(self) -> Address:
        """See `Replica.open`."""
        return self._replica.open()

    def connect(self, addresses: Mapping[Seat, Address], shards: Sequence[str]) -> None:
        """See `Replica.connect`; the process stays on cores of its own from now on, where it has any."""
        hosts = {seat: address.host for seat, address in addresses.items()}
        stay(own_cores(self._seat, self._layout, hosts, allowed()))
        self._replica.connect(addresses, shards)

    def begin(self, checkpoint: str | None, step: int, samples: int, position: Any) -> None:
        """See `Replica.begin`."""
        self._replica.begin(checkpoint, step, samples, position)
        gc.collect()
        gc.freeze()  # what is there stays: PyTorch's and Ray's objects need not be looked through again and again

    def run(self, until: int, allowed: int = 0) -> Progress:
        """See `Replica.run`."""
        return self._replica.run(until, allowed)

    def save(self, path: str) -> None:
        """See `Replica.save`."""
        self._replica.save(path)

    def beat(self) -> int:
        """Steps done; answered in the thread CONTROL while another one computes."""
        return self._replica.step


Replicas: Any = actor(ReplicaActor, max_restarts=0, concurrency_groups={CONTROL: 1})
Shards: Any = actor(ShardActor, max_restarts=0, concurrency_groups={CONTROL: 1, SERVE: 1})
