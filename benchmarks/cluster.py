"""What engine ray keeps of engine local's throughput over loopback, beside Paddle's parameter server.

    python benchmarks/cluster.py [--quick] [--cores N] [--only full,small] [--batch N] [--peer-python PYTHON]

ctrdnn: 26 ids, 13 numbers, dim 16, batch 4096, with the usual tower (3×FC400) and with a small one, where rows weigh
more. With `--only` also other models of the zoo, by name, without Paddle. Two workers and one shard of engine ray share
the cores that engine local and Paddle have too. Batches lie in memory beforehand. Every line of a table comes from one
run: subjects take turns (A, B, A, B, ...), and a ratio is the median over rounds of the ratio within a round. Paddle
needs `make peers`; what is missing is named.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from turns import Turns

HERE = Path(__file__).parent
PEER_PYTHON = HERE / ".peers" / "paddle" / "bin" / "python"
PADDLE, CTRDNN = "Paddle", "ctrdnn"
KEEPS, BEATS = 0.7, 4.0
"""What engine ray should keep of engine local's throughput, and how much faster than Paddle it should be."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Subject:
    """One line: what is asked of which process, and the line it is compared with."""

    name: str
    process: Turns
    request: dict[str, Any] = field(default_factory=dict)
    local: str = ""
    aims: bool = False
    failures: list[str] = field(default_factory=list)

    def run(self, steps: int) -> float:
        """Seconds a step; NaN if it is missing, and `failures` says why."""
        answer = self.process.ask({"steps": steps, **self.request})
        if "seconds" in answer:
            return float(answer["seconds"]) / steps
        self.failures.append(answer.get("failure", self.process.failure))
        return float("nan")


def is_amd() -> bool:
    """Whether the processor is one on which Paddle's MKL takes its slowest kernels unless it is told otherwise."""
    info = Path("/proc/cpuinfo")
    return info.exists() and "AuthenticAMD" in info.read_text()


def subjects(spec: dict[str, Any], cut: int, peer_python: str) -> list[Subject]:
    """All lines of a table; `cut` is the first layer of the second of two stages."""
    local = Turns("cluster_subject.py", "local", sys.executable, {**spec, "engine": "local"})
    ray = Turns("cluster_subject.py", "ray", sys.executable, {**spec, "engine": "ray"})
    found = []
    for cuts, what, workers in ([], "one stage", "2 replicas"), ([cut], "two stages", "1 replica each"):
        base = f"local, sync, {what}"
        for mode in ("sync", "async"):
            request = {"mode": mode, "cuts": cuts}
            found += [Subject(f"local, {mode}, {what}", local, request, base)] if cuts or mode == "sync" else []
            found.append(Subject(f"ray, {mode}, {what}, {workers}", ray, request, base, aims=not cuts))
    if spec["model"] != CTRDNN:
        return found
    found.append(Subject(PADDLE, Turns("cluster_paddle.py", PADDLE, peer_python, spec)))
    if is_amd():
        told = f"{PADDLE}, its MKL told to use AVX2"
        found.append(Subject(told, Turns("cluster_paddle.py", told, peer_python, {**spec, "avx2": True})))
    return found


def table(lines: Sequence[Subject], *, batch: int, rounds: int, steps: int) -> list[str]:
    """Measures all lines in turns."""
    seconds: dict[str, list[float]] = {line.name: [] for line in lines}
    for number in range(rounds + 1):  # the first round warms up
        for line in lines:
            seconds[line.name].append(line.run(steps if number else max(2, steps // 4)))
            failed = line.failures[-1] if line.failures else ""
            print(f"  {line.name}: {failed or f'{seconds[line.name][-1] * 1e3:.1f} ms'}", flush=True)
    rates = {name: batch / np.array(taken[1:]) for name, taken in seconds.items()}
    peers = [line.name for line in lines if line.name.startswith(PADDLE)]
    compared = [cell for name in ["local", *peers] for cell in (f"over {name}", "lowest–highest")]
    head = ["subject", "ms a step", "samples/s", *compared, "aim"]
    rows = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for line in lines:
        if line.failures:
            rows.append(f"| {line.name} | missing: {line.failures[0]} |" + " |" * (len(head) - 2))
            continue
        rate = rates[line.name]
        cells = [line.name, f"{batch / np.median(rate) * 1e3:.1f}", f"{np.median(rate):,.0f}"]
        cells.append(ratio(rate / rates[line.local], ".0%") if line.local and line.local != line.name else "| ")
        cells += [ratio(rate / rates[name], ".2f") for name in peers]
        cells.append(f"≥ {KEEPS:.0%} of local, ≥ {BEATS:g}× Paddle" if line.aims else "")
        rows.append(f"| {' | '.join(cells)} |")
    for process in {id(line.process): line.process for line in lines}.values():
        process.close()
    print("\n".join(rows), flush=True)
    return rows


def ratio(values: Floats, form: str) -> str:
    """Two cells: the median and the range."""
    if np.isnan(values).any():
        return "| "
    return f"{np.median(values):{form}} | {values.min():{form}}–{values.max():{form}}"


PARTS: dict[str, tuple[str, dict[str, Any], int]] = {
    "full": ("3×FC400", {"hidden": [400, 400, 400]}, 2), "small": ("tower 64-32", {"hidden": [64, 32]}, 1)
}  # fmt: skip
"""What it is called, the widths, and the first layer of the second stage, where the work is about halved."""


def main() -> None:
    """Measures, and files what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of few steps, to see that it works")
    parser.add_argument("--only", default="full,small", help="towers of ctrdnn (full, small), or other models")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--ids", default="zipf,uniform")
    parser.add_argument("--cores", type=int, default=2, help="cores that each subject has, all together")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=128, help="steps a round")
    parser.add_argument("--peer-python", default=str(PEER_PYTHON))
    parser.add_argument("--out", help="file for the results; by default under benchmarks/results")
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])  # and of all processes that it starts
    rounds, steps = (1, 16) if given.quick else (given.rounds, given.steps)
    lines = []
    for part in given.only.split(","):
        title, args, cut = PARTS.get(part, (part, {}, 2))
        model = CTRDNN if part in PARTS else part
        for ids in given.ids.split(","):
            spec = {"batch": given.batch, "rows": 2_000_000, "ids": ids, "threads": given.cores, "model": model, **args}
            print(f"== {title}, ids {ids}", flush=True)
            made = table(subjects(spec, cut, given.peer_python), batch=given.batch, rounds=rounds, steps=steps)
            lines += [f"## {title}, ids {ids}", "", *made, ""]
    if given.quick and not given.out:
        return
    today = datetime.date.today().isoformat()
    path = Path(given.out) if given.out else HERE / "results" / f"cluster-{today}.md"
    head = [
        f"# Engine ray over loopback, {today}", "",
        f"`python benchmarks/cluster.py --only {given.only} --ids {given.ids} --batch {given.batch} --cores "
        f"{given.cores}` on {given.cores} cores of {platform.processor() or platform.machine()}, {rounds} rounds of "
        f"{steps} steps. Two "
        "workers and one shard, Paddle 2.6.2 with one server and one trainer, each all on these cores.", "",
    ]  # fmt: skip
    path.write_text("\n".join(head + lines))
    print(f"written to {path}")


if __name__ == "__main__":
    main()
