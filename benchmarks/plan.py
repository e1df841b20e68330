"""How fast and how good the planning methods are, on random problems. Prints tables and files them.

    python benchmarks/plan.py [--quick]

Problems come from `heterps.schedule.random_problems` with seeds that pretraining never saw. Times are wall clock of one
process; they depend on the machine, so each table names it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from heterps.schedule.methods import make_method
from heterps.schedule.objective import ClosedForm
from heterps.schedule.problem import Problem
from heterps.schedule.random_problems import random_problem
from heterps.schedule.search import Outcome, Settings, search

SEED = 2_000_000
RIVALS = ("bayesian", "genetic", "greedy", "heuristic")


def run(problem: Problem, method: str, **settings: int) -> Outcome:
    """One method on one problem."""
    objective = ClosedForm(problem)
    return search(objective, make_method(method, objective, Settings(**settings)))


def exact_table(count: int) -> list[str]:
    """Seconds that `exact` takes to prove the optimum, by size; peak memory of the whole run at the end."""
    rows = ["| layers × types | problems | proved | median s | slowest s |", "| --- | --- | --- | --- | --- |"]
    sizes = [(layers, types) for layers in (8, 12, 16, 20) for types in (2, 4, 8, 16, 32, 64)]
    for layers, types in [*sizes, (200, 8)]:
        seconds, proved = [], 0
        for i in range(count):
            rng = np.random.default_rng([SEED, layers, types, i])
            outcome = run(random_problem(rng, layers=layers, types=types), "exact")
            seconds.append(outcome.seconds)
            proved += outcome.proved >= outcome.value * (1 - 1e-6)
        rows.append(f"| {layers} × {types} | {count} | {proved} | {np.median(seconds):.3f} | {max(seconds):.3f} |")
        print(rows[-1], flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return [*rows, "", f"Peak memory of the process over all of these: {peak:.0f} MB."]


def learned_table(count: int) -> list[str]:
    """Gaps of `rl`, of the pretrained policy alone and of the rivals to the proved optimum."""
    names = ("rl", "rl-rnn", "policy alone", *RIVALS, "only:TYPE")
    gaps: dict[str, list[float]] = {name: [] for name in names}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    beaten = 0
    for i in range(count):
        rng = np.random.default_rng([SEED, 7, i])
        layers, types = int(rng.integers(8, 21)), int(rng.integers(2, 9))
        problem = random_problem(rng, layers=layers, types=types)
        best = run(problem, "exact")
        found = {
            "rl": run(problem, "rl"),
            "rl-rnn": run(problem, "rl-rnn"),
            "policy alone": run(problem, "rl", rounds=0),
        }
        found |= {name: run(problem, name) for name in RIVALS}
        singles = [run(problem, f"only:{name}") for name in problem.names]
        found["only:TYPE"] = min(singles, key=lambda outcome: outcome.value)
        for name, outcome in found.items():
            gaps[name].append(outcome.value / best.value - 1)
            seconds[name].append(outcome.seconds)
        beaten += found["rl"].value > min(found[name].value for name in (*RIVALS, "only:TYPE")) * (1 + 1e-9)
        print(f"{i + 1}/{count}: {layers} × {types}, rl {gaps['rl'][-1]:.2%} in {seconds['rl'][-1]:.1f} s", flush=True)
    rows = ["| method | within 1% | within 5% | within 10% | worst | median s | slowest s |", "| --- " * 7 + "|"]
    for name in names:
        gap = np.array(gaps[name])
        worst = "none found" if np.isinf(gap.max()) else f"{gap.max():.1%}"
        shares = " | ".join(f"{int((gap <= limit).sum())}" for limit in (0.01, 0.05, 0.1))
        rows.append(f"| {name} | {shares} | {worst} | {np.median(seconds[name]):.2f} | {max(seconds[name]):.2f} |")
    return [*rows, "", f"A rival found a cheaper plan than `rl` on {beaten} of {count} problems."]


def help_seconds() -> list[str]:
    """Seconds of `heterps --help`, the median of five."""
    import time

    times = []
    for _ in range(5):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "heterps.cli.main", "--help"], check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return [f"`heterps --help`: {np.median(times):.2f} s (median of 5)."]


def main() -> None:
    """Runs all tables and writes them under benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few problems; prints, files nothing")
    quick = parser.parse_args().quick
    today = datetime.date.today().isoformat()
    parts: list[tuple[str, Callable[[], list[str]]]] = [
        ("`exact`: seconds to a proved optimum", lambda: exact_table(2 if quick else 10)),
        ("Methods against the proved optimum (8–20 layers, 2–8 types)", lambda: learned_table(3 if quick else 100)),
        ("Command line", help_seconds),
    ]
    lines = [f"# Planning, {today}", "", f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, "
             f"Python {platform.python_version()}; `python benchmarks/plan.py`."]  # fmt: skip
    for title, table in parts:
        print(f"== {title}", flush=True)
        lines += ["", f"## {title}", "", *table()]
    text = "\n".join(lines) + "\n"
    print(text)
    if not quick:
        (Path(__file__).parent / "results" / f"plan-{today}.md").write_text(text)


if __name__ == "__main__":
    main()
