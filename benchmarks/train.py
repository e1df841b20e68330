"""How fast heterps trains, beside plain PyTorch and TorchRec. Prints tables and files them.

    python benchmarks/train.py [--quick] [--only cpu,gpu] [--threads N] [--peer-python PYTHON]

ctrdnn: 26 ids (Zipf 1.05), 13 numbers, dim 16, 3×FC400; batches lie in the host's memory. Every line of a table comes
from one run: subjects are processes that take turns (A, B, A, B, ...), with the same threads and precision, and a ratio
is the median over rounds of the ratio within a round. TorchRec needs `make peers`; what is missing is named.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from turns import Turns

HERE = Path(__file__).parent
PEER_PYTHON = HERE / ".peers" / "fbgemm" / "bin" / "python"


class Subject(Turns):
    """A subject in its process; see `train_subject.py`."""

    def __init__(self, name: str, *, python: str = sys.executable, slow: int = 1, **spec: Any) -> None:
        """Starts it. One that is `slow` runs that many times fewer steps."""
        self.spec, self.slow = spec, slow
        super().__init__("train_subject.py", name, python, spec)
        print(f"  {name}: {self.failure or 'ready'}", flush=True)

    def run(self, steps: int) -> float:
        """Seconds a step; NaN if the subject is missing."""
        steps = max(2, steps // self.slow)
        answer = self.ask({"steps": steps})
        return float(answer["seconds"]) / steps if answer else float("nan")


@dataclass(frozen=True)
class Bench:
    """How much is measured."""

    rounds: int
    steps: int
    threads: int
    peer_python: str

    def table(self, subjects: Sequence[Subject], aims: dict[str, str], *, scale: float = 1.0) -> list[str]:
        """A table of step times, and each subject's time over that of the first."""
        steps = max(2, int(self.steps * scale))
        times: dict[str, list[float]] = {subject.name: [] for subject in subjects}
        for _ in range(self.rounds + 1):  # the first round warms up
            for subject in subjects:
                times[subject.name].append(subject.run(steps))
        first = np.array(times[subjects[0].name][1:])
        rows = [f"| subject | ms a step | M samples/s | time / {subjects[0].name} | lowest–highest round | aim |"]
        rows.append("| --- " * 6 + "|")
        for subject in subjects:
            aim = aims.get(subject.name, "")
            if subject.failure:
                rows.append(f"| {subject.name} | missing: {subject.failure} | | | | {aim} |")
                continue
            taken = np.array(times[subject.name][1:])
            ratio = taken / first
            rows.append(
                f"| {subject.name} | {np.median(taken) * 1e3:.2f} "
                f"| {subject.spec['batch'] / np.median(taken) / 1e6:.3f} | {np.median(ratio):.2f} "
                f"| {ratio.min():.2f}–{ratio.max():.2f} | {aim} |"
            )
        for subject in subjects:
            subject.close()
        print("\n".join(rows), flush=True)
        return rows


def on_cores(bench: Bench) -> list[str]:
    """Batch 4096 on the CPU."""
    base = {"batch": 4096, "rows": 2_000_000, "threads": bench.threads}
    large = {**base, "hidden": [400, 400, 400]}
    peer = {**large, "subject": "torchrec", "python": bench.peer_python}
    lines = [f"### Cores: batch 4096, {bench.threads} threads, 3×FC400", ""]
    lines += bench.table(
        [
            Subject("heterps", subject="heterps", **large),
            Subject("dense layers alone, plain PyTorch", subject="dense", fused=True, **large),
            Subject("TorchRec's fused tables", **peer),
            Subject("plain PyTorch", subject="plain", **large),
        ],
        {"dense layers alone, plain PyTorch": "≥ 0.95", "TorchRec's fused tables": "≥ 1"},
    )
    for ids in ("zipf", "uniform"):
        small = {**base, "hidden": [64, 32], "ids": ids}
        lines += ["", f"### Cores: batch 4096, {bench.threads} threads, tower 64-32, ids {ids}", ""]
        lines += bench.table(
            [Subject("heterps", subject="heterps", **small), Subject("plain PyTorch", subject="plain", **small)],
            {"plain PyTorch": "≥ 3"},
            scale=4,
        )
    lines += ["", f"### Cores: batch 4096, {bench.threads} threads, 3×FC400, bf16", ""]
    lines += bench.table(
        [
            Subject("heterps, bf16", subject="heterps", precision="bf16", **large),
            Subject("heterps, float32", subject="heterps", **large),
        ],
        {"heterps, float32": "≥ 1.6"},
    )
    return lines


def on_gpu(bench: Bench) -> list[str]:
    """One GPU, and embeddings on the cores before it; 10 million rows."""
    aims = {4096: "≥ 5.8 M samples/s", 65536: "≥ 9.5 M samples/s"}
    lines = []
    for batch in (4096, 65536):
        for ids in ("zipf", "uniform"):
            few = {"distinct_batches": 64 if batch == 4096 else 6}
            base = {"batch": batch, "rows": 10_000_000, "hidden": [400, 400, 400], "ids": ids, "device": "cuda", **few}
            cores = {**base, "threads": bench.threads, "placement": "cpu+gpu"}
            lines += ["", f"### One GPU: batch {batch}, ids {ids}, 10 million rows", ""]
            lines += bench.table(
                [
                    Subject("heterps, all on the GPU", subject="heterps", placement="gpu", **base),
                    Subject("heterps, embeddings on the cores", subject="heterps", **cores),
                    Subject("plain PyTorch, all on the GPU", subject="plain", slow=4, **base),
                    Subject("plain PyTorch, embeddings on the cores", subject="plain", slow=20, **cores),
                ],
                {"heterps, all on the GPU": aims[batch], "heterps, embeddings on the cores": "≥ 4 M samples/s"},
                scale=40 if batch == 4096 else 6,
            )
    return lines


PARTS = {"cpu": on_cores, "gpu": on_gpu}


def main() -> None:
    """Runs the parts, and files what they give."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, to see that it works")
    parser.add_argument("--only", default="cpu", help="parts: cpu, gpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10, help="steps a round")
    parser.add_argument("--peer-python", default=str(PEER_PYTHON))
    parser.add_argument("--out", help="file for the results; by default under benchmarks/results")
    given = parser.parse_args()
    bench = Bench(2 if given.quick else given.rounds, given.steps, given.threads, given.peer_python)
    lines = []
    for part in given.only.split(","):
        lines += [*PARTS[part](bench), ""]
    if given.quick and not given.out:
        return
    today = datetime.date.today().isoformat()
    import torch

    where = torch.cuda.get_device_name(0) if "gpu" in given.only and torch.cuda.is_available() else "no GPU"
    kind = "-gpu" if "gpu" in given.only else ""
    path = Path(given.out) if given.out else HERE / "results" / f"train{kind}-{today}.md"
    head = [
        f"# Training, {today}", "",
        f"`python benchmarks/train.py --only {given.only} --threads {given.threads}` on {os.cpu_count()} cores of "
        f"{platform.processor() or platform.machine()} ({where}), torch {torch.__version__}. {bench.rounds} rounds of "
        f"{bench.steps} steps.", "",
    ]  # fmt: skip
    path.write_text("\n".join(head + lines) + "\n")
    print(f"written to {path}")


if __name__ == "__main__":
    main()
