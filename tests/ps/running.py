"""Real server processes for tests."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heterps.ps.keys import Keys

FAKE = "tests.ps.fakes:make_fake"
ROOT = Path(__file__).parents[2]
PATIENCE_S = 150.0
"""For what takes moments, or a process to start or to end: no healthy one needs as long, however busy the machine."""


class Process:
    """A server started as by hand. Its log is a file, so that it never blocks on a full pipe."""

    def __init__(
        self, directory: Path, *, bind: str = "tcp://127.0.0.1:*", make: str | None = None, save_dir: Path | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.key_file, self.log_file = directory / "keys.json", directory / "server.log"
        if not self.key_file.exists():
            Keys.generate().save(self.key_file)
        command = [
            sys.executable,
            "-m",
            "heterps.cli.main",
            "ps",
            "serve",
            "--bind",
            bind,
            "--key-file",
            str(self.key_file),
        ]
        command += [] if save_dir is None else ["--save-dir", str(save_dir)]
        command += [] if make is None else ["--table-factory", make]
        with self.log_file.open("a") as log:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        self.address = self._address()

    @property
    def keys(self) -> Keys:
        return Keys.load(self.key_file)

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def _address(self) -> str:
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE_S)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("serving at "):
            self.kill()
            raise RuntimeError(f"the server did not start: {line!r}\n{self.log}")
        return line.removeprefix("serving at ").strip()

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.join()

    def freeze(self) -> None:
        """SIGSTOP; it does nothing any more when this returns."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), self.log

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.join()

    def join(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


@contextmanager
def running_server(
    directory: Path, *, make: str | None = None, shards: int = 1, ipc: bool = False
) -> Iterator[tuple[list[str], Keys]]:
    """Starts `shards` servers that share a key; yields their addresses and the keys.

    `make`: "module:function" that makes a table from its configuration (None: the native one). `directory` gets the key
    file, logs and sockets; with `ipc` they listen there rather than on a port, without encryption.
    """
    servers: list[Process] = []
    (directory / "keys.json").unlink(missing_ok=True)
    sockets = directory / "sockets"
    try:
        for shard in range(shards):
            bind = f"ipc://{sockets}/{shard}" if ipc else "tcp://127.0.0.1:*"
            servers.append(Process(directory, bind=bind, make=make))
        yield [server.address for server in servers], servers[0].keys
    finally:
        for server in servers:
            server.kill()


def lasting_address() -> str:
    """For a server that ends and comes back: no other socket gets its port by chance meanwhile.

    Ports that the system chooses, for `*` and for connections, lie above.
    """
    for port in random.SystemRandom().sample(range(20_000, 30_000), 100):
        with suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return f"tcp://127.0.0.1:{port}"
    raise AssertionError("no free port")


def have_patience(client: Any, timeout_s: float, retries: int) -> None:
    """From its next request on: for servers that shall answer, however long it takes, and later shall not."""
    for line in client._channels:
        line._timeout_s, line._retries = timeout_s, retries


def until(condition: object, *, what: str, limit_s: float = PATIENCE_S) -> None:
    """Waits until `condition()` is true, by asking; fails with `what` after `limit_s`."""
    end_s = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        if time.monotonic() > end_s:
            raise AssertionError(f"waited {limit_s:g} s for: {what}")
        time.sleep(0.01)
