"""How fast and how large sparse tables are, beside their peers and what memory allows. Prints tables and files them.

    python benchmarks/store.py [--quick] [--only speed,memory] [--peer-python PYTHON]

A batch is 4096 × 26 ids, Zipf 1.05 over 8 million rows, pulled and then pushed; a rate counts the batch's ids once.
Every line of a table comes from one run: subjects are processes that take turns (A, B, A, B, ...), a ratio is the
median over rounds of the ratio within a round. One thread unless said. Peers need `make peers` and, for Redis,
`redis-server`; what is missing is named in its line.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from turns import Turns

HERE = Path(__file__).parent
PEER_PYTHON = HERE / ".peers" / "fbgemm" / "bin" / "python"
PEERS = ("torch", "fbgemm", "redis", "redis-py")
WARM_UP = 4  # rounds: a table that was just filled may still move its index for some tens of calls


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured."""

    rows: int = 8_000_000
    rounds: int = 9
    batches: int = 12
    """Batches a round."""


class Worker(Turns):
    """A subject in its process; see `store_subject.py`."""

    def __init__(self, name: str, python: str, **spec: Any) -> None:
        super().__init__("store_subject.py", name, python, spec)

    def run(self, batches: int) -> dict[str, Any]:
        """Times so many fresh batches; empty if the subject is missing."""
        return self.ask({"batches": batches})


class Bench:
    """Starts subjects and lets them take turns."""

    def __init__(self, size: Size, peer_python: str) -> None:
        self.size, self.peer_python = size, peer_python

    def start(self, name: str, subject: str, **spec: Any) -> Worker:
        """A subject, filled and ready."""
        python = self.peer_python if subject in PEERS else sys.executable
        worker = Worker(name, python, **{"subject": subject, "rows": self.size.rows, "dim": 16, **spec})
        print(f"  {name}: {worker.failure or 'ready'}", flush=True)
        return worker

    def rates(self, workers: Sequence[Worker]) -> dict[str, np.ndarray]:
        """Ids a second of each worker in each round, in turns, after some to warm up."""
        rates: dict[str, list[float]] = {worker.name: [] for worker in workers}
        for _ in range(WARM_UP + self.size.rounds):
            for worker in workers:
                answer = worker.run(self.size.batches)
                rates[worker.name].append(answer["ids"] / answer["seconds"] if answer else np.nan)
        return {name: np.array(values[WARM_UP:]) for name, values in rates.items()}

    def compare(self, workers: Sequence[Worker], aims: dict[str, str]) -> list[str]:
        """A table of rates, and the first worker's ratio to each; `aims` names the aim of a line."""
        rates = self.rates(workers)
        first = rates[workers[0].name]
        rows = [f"| subject | M rows/s | {workers[0].name} / this | lowest–highest round | aim |", "| --- " * 5 + "|"]
        for worker in workers:
            rate, aim = rates[worker.name], aims.get(worker.name, "")
            if worker.failure:
                rows.append(f"| {worker.name} | missing: {worker.failure} | | | {aim} |")
                continue
            ratio = first / rate
            spread = f"{ratio.min():.2f}–{ratio.max():.2f}"
            rows.append(f"| {worker.name} | {np.median(rate) / 1e6:.2f} | {np.median(ratio):.2f} | {spread} | {aim} |")
        for worker in workers:
            worker.close()
        print("\n".join(rows), flush=True)
        return rows


def speed(bench: Bench) -> list[str]:
    """The main workload beside peers, the limit and two threads."""
    workers = [
        bench.start("heterps", "heterps"),
        bench.start("heterps, 2 threads", "heterps", threads=2),
        bench.start("physical limit, 16 rows ahead", "limit"),
        bench.start("physical limit, 96 rows ahead", "limit", ahead=96),
        bench.start("torch Embedding + Adagrad", "torch"),
        bench.start("FBGEMM CPU TBE", "fbgemm"),
    ]
    aims = {
        "heterps, 2 threads": "≤ 0.62 (1.6×)",
        "physical limit, 16 rows ahead": "≥ 0.65",
        "torch Embedding + Adagrad": "≥ 5",
        "FBGEMM CPU TBE": "≥ 1.4",
    }
    return bench.compare(workers, aims)


def dimensions(bench: Bench) -> list[str]:
    """The same with longer rows."""
    lines = []
    for dim in (64, 128):
        workers = [
            bench.start(f"heterps, dim {dim}", "heterps", dim=dim),
            bench.start(f"physical limit, dim {dim}", "limit", dim=dim),
            bench.start(f"FBGEMM CPU TBE, dim {dim}", "fbgemm", dim=dim),
        ]
        lines += [*bench.compare(workers, {}), ""]
    return lines[:-1]


def new_ids(bench: Bench) -> list[str]:
    """Every id of a batch is new: each pull creates its rows."""
    workers = [
        bench.start("heterps, 100% new ids", "heterps", fresh=True, filled=False),
        bench.start("heterps, no new ids", "heterps"),
    ]
    return bench.compare(workers, {})


def memory(bench: Bench) -> list[str]:
    """Bytes of a filled table over those of its rows and optimizer state."""
    worker = bench.start("heterps", "heterps")
    worker.close()
    if worker.failure:
        return [f"missing: {worker.failure}"]
    least = (16 + 1) * 4 * bench.size.rows
    rows = ["| measure | MB | of rows and state | aim |", "| --- " * 4 + "|"]
    rows += [f"| rows and state, 68 bytes × {bench.size.rows:,} | {least / 1e6:.0f} | 1 | |"]
    measures = {"growth of the process's resident memory as it fills": "rss_bytes", "`stats().bytes`": "bytes"}
    for name, key in measures.items():
        rows.append(f"| {name} | {worker.ready[key] / 1e6:.0f} | {worker.ready[key] / least:.3f} | ≤ 1.35 |")
    return rows


def growth(bench: Bench) -> list[str]:
    """Longest batch while a table grows from nothing, each batch of new ids only."""
    rows = ["| ids a batch | clock | median ms | 99.9% ms | longest ms | longest − median | aim |", "| --- " * 7 + "|"]
    for batch in ((4096, 26), (4096, 1)):
        size = batch[0] * batch[1]
        worker = bench.start(f"heterps, batches of {size}", "heterps", fresh=True, filled=False, batch=batch)
        answers = [worker.run(1) for _ in range(bench.size.rows // size)] if not worker.failure else []
        worker.close()
        if worker.failure:
            return [f"missing: {worker.failure}"]
        for clock, key in (("wall", "wall_s"), ("processor", "cpu_s")):
            ms = np.array([answer[key][0] for answer in answers]) * 1e3
            middle, late, most = np.median(ms), np.quantile(ms, 0.999), ms.max()
            rows.append(f"| {size} | {clock} | {middle:.2f} | {late:.2f} | {most:.2f} | {most - middle:.2f} | ≤ 20 |")
    return [*rows, "", "The processor's clock leaves out what other processes of the machine took."]


def loopback(bench: Bench) -> list[str]:
    """Through a server process on this machine, beside Redis. Ratios are of the remote table to each."""
    workers = [
        bench.start("heterps.ps, shared memory", "remote"),
        bench.start("heterps.ps, tcp", "remote", shared=False),
        bench.start("heterps.ps, ipc", "remote", transport="ipc", shared=False),
        bench.start("heterps, in process", "heterps"),
        bench.start("Redis, pipelined MGET/MSET", "redis"),
        bench.start("Redis through redis-py", "redis-py"),
    ]
    aims = {"heterps, in process": "≥ 0.5", "Redis, pipelined MGET/MSET": "≥ 3"}
    note = "Redis gets each distinct id of the batch once, found beforehand; nothing is computed on its values."
    return [*bench.compare(workers, aims), "", note]


PARTS: dict[str, tuple[str, Callable[[Bench], list[str]]]] = {
    "speed": ("In process, dim 16, row-wise Adagrad", speed),
    "dims": ("Longer rows", dimensions),
    "new": ("New ids", new_ids),
    "memory": ("Memory", memory),
    "growth": ("Growing from nothing", growth),
    "loopback": ("Over loopback to one server process", loopback),
}


def processor() -> str:
    """The processor's name, as Linux gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    """Runs the parts asked for and writes them under benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows and rounds; prints, files nothing")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, joined by commas: %(default)s")
    parser.add_argument("--peer-python", default=str(PEER_PYTHON), help="Python with the peers (default: %(default)s)")
    args = parser.parse_args()
    unknown = [part for part in args.only.split(",") if part not in PARTS]
    if unknown:
        parser.error(f"--only: parts are {', '.join(PARTS)}, not {', '.join(unknown)}")
    if not Path(args.peer_python).exists():
        print(f"{args.peer_python} is missing (make peers): torch stands in from this environment, others are left out")
        args.peer_python = sys.executable
    size = Size(rows=400_000, rounds=2, batches=3) if args.quick else Size()
    bench, today = Bench(size, args.peer_python), datetime.date.today().isoformat()
    command = " ".join(["python", "benchmarks/store.py", *sys.argv[1:]])
    machine = f"{processor()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    lines = [f"# Sparse tables, {today}", "", f"{machine}; `{command}`; {size.rows:,} rows, {size.rounds} rounds of "
             f"{size.batches} batches."]  # fmt: skip
    for part in args.only.split(","):
        title, table = PARTS[part]
        print(f"== {title}", flush=True)
        lines += ["", f"## {title}", "", *table(bench)]
    text = "\n".join(lines) + "\n"
    print(text)
    if not args.quick:
        (HERE / "results" / f"store-{today}.md").write_text(text)


if __name__ == "__main__":
    main()
