"""One table, or one peer of it, in a process of its own, timed on request. Started by `store.py`.

    python store_subject.py '{"subject": "torch", "rows": 8000000, "dim": 16}'

It fills its table, prints a line of JSON, and then answers each line on standard input, `{"batches": n}`, with the
seconds that n fresh batches took. Subjects with the same `seed` see the same stream of batches. Row i of the dense
peers is id `scatter(i)` of the hash tables; popular rows lie anywhere (a fixed permutation), in all of them.
"""

from __future__ import annotations

import atexit
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from store_peers import Array, Fbgemm, Redis, RedisPy, Subject, Torch, buffer, gradients, scatter


class Workload:
    """Batches of row numbers: Zipf over `rows` rows, or each row once (`fresh`)."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.rng = np.random.default_rng(spec.get("seed", 0))
        self.shape = tuple(spec.get("batch", (4096, 26)))
        self.fresh, self.next = spec.get("fresh", False), spec["rows"] if spec.get("filled", True) else 0
        if not self.fresh:
            weights = np.arange(1, spec["rows"] + 1, dtype=np.float64) ** -float(spec.get("zipf", 1.05))
            self.cumulated = np.cumsum(weights / weights.sum())
            # Popular rows lie anywhere; "popularity" puts them side by side, which is kinder to caches than real life.
            ordered = spec.get("order", "random") == "popularity"
            self.order = np.arange(spec["rows"]) if ordered else self.rng.permutation(spec["rows"])

    def batch(self) -> Array:
        """The next batch."""
        size = int(np.prod(self.shape))
        if self.fresh:
            self.next += size
            return np.arange(self.next - size, self.next).reshape(self.shape)
        ranks = np.searchsorted(self.cumulated, self.rng.random(size)).clip(max=len(self.order) - 1)
        return self.order[ranks].reshape(self.shape)


def heterps_table(spec: dict[str, Any]) -> Any:
    """The table under test, in this process."""
    from heterps.store import SparseTable

    return SparseTable(
        dim=spec["dim"],
        optimizer=spec.get("optimizer", "rowwise-adagrad"),
        lr=0.01,
        seed=0,
        threads=spec.get("threads", 1),
    )


class Heterps(Subject):
    """heterps.store, in process."""

    def __init__(self, spec: dict[str, Any]) -> None:
        size = int(np.prod(spec.get("batch", (4096, 26))))
        self.out = buffer(size, spec["dim"])
        self.grads = gradients(size, spec["dim"])
        self.table = self.open(spec)

    def open(self, spec: dict[str, Any]) -> Any:
        """The table."""
        return heterps_table(spec)

    def fill(self, rows: int) -> None:
        """Pulls every id once, in the order of the dense peers."""
        for first in range(0, rows, len(self.out)):
            ids = scatter(np.arange(first, min(first + len(self.out), rows)))
            self.table.pull(ids, out=self.out[: len(ids)])

    def prepare(self, batch: Array) -> Array:
        """Ids."""
        return scatter(batch.reshape(-1))

    def step(self, batch: Array) -> None:
        """A pull into a buffer that is used again, then a push."""
        self.table.pull(batch, out=self.out)
        self.table.push(batch, self.grads)

    def report(self) -> dict[str, Any]:
        """Bytes the table says it takes."""
        stats = self.table.stats()
        return {"bytes": stats.bytes, "table_rows": stats.rows}


class Remote(Heterps):
    """heterps.ps: the same table in a server process on this machine, over TCP with the job's keys."""

    def open(self, spec: dict[str, Any]) -> Any:
        """A table of one shard behind a server."""
        import subprocess
        import tempfile

        from heterps.ps import Client, Keys
        from heterps.store.config import Optimizer, TableConfig

        self.directory = tempfile.TemporaryDirectory()
        key_file = Path(self.directory.name) / "keys.json"
        Keys.generate().save(key_file)
        bind = "tcp://127.0.0.1:*" if spec.get("transport", "tcp") == "tcp" else f"ipc://{self.directory.name}/s/socket"
        command = [sys.executable, "-m", "heterps.cli.main", "ps", "serve", "--bind", bind, "--key-file", str(key_file)]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        atexit.register(self.server.kill)  # also when what follows fails
        assert self.server.stdout is not None
        line = self.server.stdout.readline()
        if not line.startswith("serving at "):
            raise RuntimeError(f"the server did not start: {line!r}")
        self.client = Client(
            [line.removeprefix("serving at ").strip()], Keys.load(key_file), shared=spec.get("shared", True)
        )
        optimizer = Optimizer(name=spec.get("optimizer", "rowwise-adagrad"), lr=0.01)
        return self.client.table(TableConfig(dim=spec["dim"], optimizer=optimizer))

    def finish(self) -> None:
        """Pushes return at once: a round ends when they are applied."""
        self.table.wait()

    def close(self) -> None:
        """Ends client and server."""
        self.client.close()
        self.server.terminate()
        self.server.wait()
        self.directory.cleanup()


class Limit(Subject):
    """The same reads and writes over a flat array whose slots are known: what memory allows."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from heterps import _native

        self.native, (rows, dim) = _native, (spec["rows"], spec["dim"])
        self.ahead = spec.get("ahead", 16)
        self.rows = buffer(rows, dim)
        self.state = np.full(rows, 0.01, np.float32)
        size = int(np.prod(spec.get("batch", (4096, 26))))
        self.out = buffer(size, dim)
        self.grads = gradients(size, dim)

    def prepare(self, batch: Array) -> Array:
        """Slots."""
        return batch.reshape(-1).astype(np.uint32)

    def step(self, batch: Array) -> None:
        """Reads rows; then reads, changes and writes rows and state."""
        self.native.flat_pull(self.rows, batch, self.out, self.ahead)
        self.native.flat_push(self.rows, self.state, batch, self.grads, 0.01, self.ahead)


SUBJECTS: dict[str, Any] = {
    "heterps": Heterps,
    "remote": Remote,
    "limit": Limit,
    "torch": Torch,
    "fbgemm": Fbgemm,
    "redis": Redis,
    "redis-py": RedisPy,
}


def rss_bytes() -> int:
    """Memory of this process that is in RAM now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def timed(subject: Subject, workload: Workload, batches: int) -> dict[str, Any]:
    """Seconds of `batches` fresh batches; each one's wall and processor seconds (which leave out other processes)."""
    ready = [subject.prepare(workload.batch()) for _ in range(batches)]
    wall, cpu = [], []
    for batch in ready:
        began, spent = time.perf_counter(), time.thread_time()
        subject.step(batch)
        wall.append(time.perf_counter() - began)
        cpu.append(time.thread_time() - spent)
    began = time.perf_counter()
    subject.finish()
    return {
        "seconds": sum(wall) + time.perf_counter() - began,
        "wall_s": wall,
        "cpu_s": cpu,
        "ids": int(np.prod(workload.shape)) * batches,
    }


def main() -> None:
    """Fills the table, then answers requests until standard input ends."""
    spec = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not mix with answers
    subject = SUBJECTS[spec["subject"]](spec)
    before = rss_bytes()  # imports and the benchmark's own arrays are there; the table is empty
    try:
        if spec.get("filled", True):
            subject.fill(spec["rows"])
        after = rss_bytes()
        print(json.dumps({"rss_bytes": after - before, **subject.report()}), file=answers, flush=True)
        workload = Workload(spec)
        for line in sys.stdin:
            print(json.dumps(timed(subject, workload, json.loads(line)["batches"])), file=answers, flush=True)
    finally:
        subject.close()


if __name__ == "__main__":
    main()
