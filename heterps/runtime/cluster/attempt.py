"""One attempt at a run: its processes, from their start to their end. A failed attempt is stopped as a whole.

Each attempt has keys of its own, so that a process of an earlier one that is still alive somewhere can neither read nor
write anything of this one.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from heterps.errors import HeterPSError
from heterps.ps import Keys
from heterps.runtime.cluster._ray import SERVE, groups, ray, strategies
from heterps.runtime.cluster.actors import Replicas, Shards
from heterps.runtime.cluster.layout import Resources, missing
from heterps.runtime.cluster.nodes import resources
from heterps.runtime.cluster.policy import Died, Limits
from heterps.runtime.cluster.watch import Failed, Watch, names_of
from heterps.runtime.cluster.work import Progress, Work

ROOM_TURN_S = 2.0
"""Between two looks at whether the machines that room is waited for are still there."""


def _prefix(job: str) -> str:
    return f"heterps-{job}-"


def remove_groups(job: str) -> None:
    """Gives back all room that a job holds."""
    for held in groups.placement_group_table().values():
        if held["name"].startswith(_prefix(job)) and held["state"] != "REMOVED":
            with suppress(ValueError):
                groups.remove_placement_group(groups.get_placement_group(held["name"]))


class Stopped(Exception):
    """The run was stopped while it waited for room."""


class NoRoom(Exception):
    """The machines are there, and others use them."""


class Attempt:
    """The processes of one attempt."""

    def __init__(
        self, work: Work, *, number: int, job: str, limits: Limits, failures: int = 0, coordinator: str = ""
    ) -> None:
        """Plans it; `coordinator` is the name of the actor that the first replica looks after, if it is one."""
        self.work, self.number, self._limits, self._coordinator = work, number, limits, coordinator
        self.keys = Keys.generate()
        self.token = uuid.uuid4().hex[:8]
        """Of this attempt alone, also if a coordinator that died has had one of the same number."""
        self.watch = Watch(limits, failures=failures)
        self._job, self._name = job, f"{_prefix(job)}{number}"
        self._group: Any = None
        self._replicas: dict[str, Any] = {}
        self._shards: dict[str, Any] = {}
        self.shard_addresses: list[str] = []

    def start(self, *, wait_s: float, stop: threading.Event, on_wait: Callable[[], None]) -> None:
        """Takes room on the cluster, starts all processes, and has them meet.

        Args:
            wait_s: how long to wait for room that others have.
            stop: ends that waiting.
            on_wait: called when there is no room at once.

        Raises:
            Failed: if a machine or a process is gone.
            NoRoom: if others had the room all that time.
            Stopped: if it was stopped while it waited.
        """
        layout = self.work.layout
        replicas, shards = names_of(layout.seats(), layout.shards)
        with _rays_errors():
            demands = layout.demands(_offered())
            self._group = self._room(demands, wait_s, stop, on_wait)
            for number, (name, seat) in enumerate(zip(replicas, layout.seats(), strict=True)):
                options = self._options(number, demands[number])
                guarded = (self._coordinator, 2 * self._limits.frozen_s) if self._coordinator and not number else None
                self._replicas[name] = Replicas.options(**options).remote(
                    self.work, seat, self.keys, self.number, guarded
                )
            for number, name in enumerate(shards, start=len(replicas)):
                self._shards[name] = Shards.options(**self._options(number, demands[number])).remote(self.keys)
            opened = {name: actor.open.remote() for name, actor in {**self._replicas, **self._shards}.items()}
        for name, actor in {**self._replicas, **self._shards}.items():
            self.watch.add(name, actor)
        found = self.watch.all(opened, within_s=self._limits.start_s)
        for name, actor in self._shards.items():
            self.watch.add_endless(name, actor.serve.options(concurrency_group=SERVE).remote())
        addresses = dict(zip(layout.seats(), found[: len(replicas)], strict=True))
        self.shard_addresses = found[len(replicas) :]
        self._every("connect", addresses, self.shard_addresses)

    def begin(self, checkpoint: str | None, step: int, samples: int, position: Any) -> None:
        """All replicas take up a checkpoint."""
        self._every("begin", checkpoint, step, samples, position)

    def run(self, until: int, allowed: int) -> list[Progress]:
        """All replicas do the steps up to `until`, and go on up to `allowed` meanwhile; in the order of seats."""
        return self._every("run", until, allowed, stepping=True)

    def save(self, path: str) -> None:
        """The first replica of each stage writes its part."""
        first = [str(seat) for seat in self.work.layout.seats() if seat.replica == 0]
        self.watch.all({name: self._replicas[name].save.remote(path) for name in first})

    def stop(self) -> None:
        """Ends all processes at once, whatever they do, and gives their room back."""
        for actor in [*self._replicas.values(), *self._shards.values()]:
            with suppress(Exception):
                ray.kill(actor, no_restart=True)
        if self._group is not None:
            with suppress(Exception):
                groups.remove_placement_group(self._group)

    def _every(self, method: str, *args: Any, stepping: bool = False) -> list[Any]:
        calls = {name: getattr(actor, method).remote(*args) for name, actor in self._replicas.items()}
        return self.watch.all(calls, stepping=stepping)

    def _room(self, demands: list[Resources], wait_s: float, stop: threading.Event, on_wait: Callable[[], None]) -> Any:
        avoid = self.work.avoid
        remove_groups(self._job)  # of a coordinator that died
        options = {"bundle_label_selector": [_elsewhere(avoid)] * len(demands)} if avoid else {}
        group = groups.placement_group(demands, strategy="PACK", name=self._name, **options)
        end_s = time.monotonic() + wait_s
        while not group.wait(ROOM_TURN_S):
            on_wait()
            lack = missing(demands, resources(avoid=avoid))
            if stop.is_set() or lack is not None or time.monotonic() > end_s:
                groups.remove_placement_group(group)
            if stop.is_set():
                raise Stopped
            if lack is not None:  # a machine that was there is gone: no use in waiting
                raise Failed(Died("the cluster", f"no room for the plan ({lack})"))
            if time.monotonic() > end_s:
                raise NoRoom(f"other jobs had the machines for {wait_s:.0f} s")
        return group

    def _options(self, bundle: int, demand: Mapping[str, float]) -> dict[str, Any]:
        assert self._group is not None
        strategy = strategies.PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        others = {name: amount for name, amount in demand.items() if name not in ("CPU", "GPU")}
        return {
            "num_cpus": demand.get("CPU", 0.0), "num_gpus": demand.get("GPU", 0.0), "resources": others,
            "scheduling_strategy": strategy,
        }  # fmt: skip


def _elsewhere(avoid: Sequence[str]) -> dict[str, str]:
    """Ray's way to say: on any machine but these; a blank after a comma would be part of an id."""
    return {"ray.io/node-id": f"!in({','.join(avoid)})"}


@contextmanager
def _rays_errors() -> Iterator[None]:
    """What Ray raises while an attempt starts may pass: its head is away, or another one took the room back."""
    try:
        yield
    except (HeterPSError, Failed, Stopped, NoRoom):
        raise
    except Exception as error:  # Ray raises this very class where a group is gone
        raise Failed(Died("Ray", str(error).strip().partition("\n")[0])) from error


def _offered() -> Resources:
    return {name: float(amount) for name, amount in ray.cluster_resources().items()}
