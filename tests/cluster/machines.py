"""Clusters whose machines can be broken: Ray nodes in processes of this machine, and hosts in network namespaces."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.cluster.jobs import PATIENCE_S, parent, processes, title_of, wait_for

NOTICES = {
    "RAY_health_check_initial_delay_ms": "1000", "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000", "RAY_health_check_failure_threshold": "3",
}  # fmt: skip
"""Ray's head finds a lost machine dead within about ten seconds rather than a minute."""
ONLY_DEATHS = NOTICES | {"RAY_health_check_timeout_ms": "15000"}
"""As soon if its processes are dead, which the system tells. Where no network is cut, others are but slow."""
CORES = 3
"""Nominal cores of each machine: two of three hold a run of five processes, and of four, so none holds all of it."""

TRIES = 5
"""Of `ray start`, which gives up itself after half a minute."""


def make_cluster(**head: Any) -> Any:
    """Ray nodes in processes of this machine, which may take long to start: its head alone, to begin with."""
    from ray.cluster_utils import Cluster

    class Patient(Cluster):  # type: ignore[misc]
        def _wait_for_node(self, node: Any, timeout: float = PATIENCE_S) -> None:
            super()._wait_for_node(node, timeout)

    with _environment({"RAY_gcs_server_port_wait_time_s": f"{PATIENCE_S:.0f}"}):
        return Patient(initialize_head=True, head_node_args={"include_dashboard": False, **head})


@contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in more}
    os.environ.update(more)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


class Machines(ABC):
    """A cluster of a head without cores, and some machines."""

    address: str
    names: list[str]
    prefix: tuple[str, ...] = ()
    """Of commands that run beside the head."""

    def __init__(self, notices: Mapping[str, str]) -> None:
        self.environment = {**os.environ, **notices}

    @abstractmethod
    def pids(self, name: str) -> list[int]:
        """Of all processes of a machine."""

    @abstractmethod
    def start(self, name: str) -> None:
        """A machine with no process gets Ray's."""

    @abstractmethod
    def close(self) -> None:
        """Ends everything."""

    def of_title(self, title: str) -> dict[int, str]:
        """Processes with such a title, the head's too, and their machines."""
        return {pid: name for name in ("head", *self.names) for pid in self.pids(name) if title in title_of(pid)}

    def kill(self, name: str) -> None:
        """A machine loses its power."""
        for pid in self.pids(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: not self.pids(name)), f"{name} has processes left"

    def __enter__(self) -> Machines:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Nodes(Machines):
    """Ray nodes on this machine, by ray.cluster_utils."""

    def __init__(self, count: int = 3) -> None:
        super().__init__(ONLY_DEATHS)
        with _environment(ONLY_DEATHS):
            self._cluster = make_cluster(num_cpus=0)
        self.address = self._cluster.address
        self._nodes = {"head": self._cluster.head_node}
        self.names = [f"node{number}" for number in range(count)]
        for name in self.names:
            self.start(name)

    def start(self, name: str) -> None:
        old = self._nodes.pop(name, None)
        if old is not None:
            self._cluster.remove_node(old, allow_graceful=False)
        self._nodes[name] = self._cluster.add_node(num_cpus=CORES)

    def pids(self, name: str) -> list[int]:
        node = self._nodes.get(name)
        started = [one.process.pid for some in node.all_processes.values() for one in some] if node else []
        alive = [pid for pid in started if title_of(pid)]
        return [*alive, *(pid for pid in processes("") if parent(pid) in alive)]

    def close(self) -> None:
        self._cluster.shutdown()


def namespaces_allowed() -> bool:
    """Whether this process may make network namespaces."""
    name = f"hps-{uuid.uuid4().hex[:6]}"
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return False
    return subprocess.run(["ip", "netns", "del", name], capture_output=True).returncode == 0


class Hosts(Machines):
    """Hosts in network namespaces, joined by a bridge. `cut` pulls the cable of one, `mend` puts it back."""

    def __init__(self, count: int = 3) -> None:
        super().__init__(NOTICES)
        self._id = uuid.uuid4().hex[:5]
        self._temporary = tempfile.mkdtemp(prefix="hps")  # short: paths of sockets have a limit
        self.names = [f"host{number}" for number in range(count)]
        self._numbers = {"head": 1, **{name: number for number, name in enumerate(self.names, start=2)}}
        self.address = f"{self._ip('head')}:6379"
        token = uuid.uuid4().hex  # Ray's own gate: without one of ours it would use, or make, one of this user
        self.environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token * 2}
        try:
            _ip("netns", "add", self._space("switch"))
            _ip("-n", self._space("switch"), "link", "add", "bridge", "type", "bridge")
            _ip("-n", self._space("switch"), "link", "set", "bridge", "up")
            for name in self._numbers:
                self._plug(name)
            self.prefix = ("ip", "netns", "exec", self._space("head"))
            self.start("head")
            for name in self.names:  # not at once: they would trip over each other, and be tried again after 30 s
                self.start(name)
        except BaseException:
            self.close()
            raise

    def _space(self, name: str) -> str:
        return f"hps-{self._id}-{name}"

    def _ip(self, name: str) -> str:
        return f"10.77.0.{self._numbers[name]}"

    def _plug(self, name: str) -> None:
        space, switch = self._space(name), self._space("switch")
        _ip("netns", "add", space)
        _ip("link", "add", "name", "cable", "netns", space, "type", "veth", "peer", "name", name, "netns", switch)
        _ip("-n", switch, "link", "set", name, "master", "bridge", "up")
        for device in ("lo", "cable"):
            _ip("-n", space, "link", "set", device, "up")
        _ip("-n", space, "address", "add", f"{self._ip(name)}/24", "dev", "cable")

    def start(self, name: str) -> None:
        where = (
            ["--head", "--port=6379", "--num-cpus=0", f"--temp-dir={self._temporary}", "--include-dashboard=false"]
            if name == "head"
            else [f"--address={self.address}", f"--num-cpus={CORES}"]
        )
        command = [
            "ip", "netns", "exec", self._space(name), sys.executable, "-m", "ray.scripts.scripts", "start", *where,
            f"--node-ip-address={self._ip(name)}", "--disable-usage-stats",
        ]  # fmt: skip
        for _ in range(TRIES):
            found = subprocess.run(command, env=self.environment, timeout=PATIENCE_S, capture_output=True, text=True)
            if found.returncode == 0:
                return
            self.kill(name)  # what it has begun
        raise AssertionError(f"Ray does not start on {name}: {found.stdout}{found.stderr}")

    def cut(self, name: str) -> None:
        """Nothing gets to the machine, or out of it."""
        _ip("-n", self._space("switch"), "link", "set", name, "down")

    def mend(self, name: str) -> None:
        """The machine is back on the network. Its Ray, which was given up meanwhile, ends, and is started anew."""
        _ip("-n", self._space("switch"), "link", "set", name, "up")

    def pids(self, name: str) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self._space(name)], capture_output=True, text=True).stdout
        return [int(pid) for pid in found.split() if title_of(int(pid))]

    def close(self) -> None:
        for name in self._numbers:
            with suppress(AssertionError):
                self.kill(name)
        for name in ("switch", *self._numbers):
            subprocess.run(["ip", "netns", "del", self._space(name)], capture_output=True)
        shutil.rmtree(self._temporary, ignore_errors=True)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=PATIENCE_S)


def root() -> Path:
    """The repository."""
    return Path(__file__).parents[2]
