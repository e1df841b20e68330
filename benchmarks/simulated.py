"""The simulator against the closed form, and who finds the cheaper plan on it. Prints tables and files them.

    python benchmarks/simulated.py [--quick]

Problems come from `heterps.schedule.random_problems` with seeds that pretraining never saw. Every second one is a
pipeline that drains (sync); units jitter; all stages share a network that carries 0.7 to 1.5 times what the closed
form's optimum would send at the throughput asked for, so that it often cannot stay the optimum. What the searches find
is simulated again, longer and with another seed, so that luck with the search's own random numbers does not count.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import platform
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from heterps.schedule.cost import evaluate
from heterps.schedule.methods import make_method
from heterps.schedule.objective import ClosedForm, Provisioning
from heterps.schedule.problem import Problem
from heterps.schedule.random_problems import random_problem
from heterps.schedule.search import Outcome, Settings, search
from heterps.schedule.simulation import Conditions, Simulated, simulate_units
from heterps.schedule.simulation.loads import measure, work_of
from heterps.units import GIGA, MILLION

Placement = NDArray[np.int32]

SEED = 4_000_000
JITTER = 0.2
SIMULATIONS = 20_000
TIE = 1e-3
"""Costs within this share count as equal: less than what another seed of the simulation changes."""


def agreement_table(count: int) -> list[str]:
    """Simulated throughput against the closed form's, nothing random, and the seconds of a simulation."""
    rows = ["| plans | differ by at most | median | µs a simulation (median) | with jitter |", "| --- " * 5 + "|"]
    for title, optimal in (("any placement and units", False), ("the closed form's optimum", True)):
        off, seconds, jittered = [], [], []
        for i in range(count):
            rng = np.random.default_rng([SEED, 1, i])
            problem = random_problem(rng, layers=16, types=int(rng.integers(2, 6)))
            placement = _exact(problem).placement if optimal else _any_placement(rng, problem)
            assert placement is not None
            work = work_of(problem, placement)
            found = ClosedForm(problem).provision(placement) if optimal else None
            units = found.units if found else tuple(int(np.exp(rng.uniform(0, 6))) for _ in range(work.stages))
            server = found.server_units if found else int(rng.integers(1, 50))
            names = problem.decode(placement)
            expected = evaluate(problem.profile, problem.cluster, names, units, server, goal=problem.goal).throughput
            began = time.perf_counter()
            got = measure(problem, work, units, server, Conditions()).throughput
            seconds.append(time.perf_counter() - began)
            began = time.perf_counter()
            measure(problem, work, units, server, Conditions(jitter=JITTER, steps=32))
            jittered.append(time.perf_counter() - began)
            off.append(abs(got / expected - 1))
        rows.append(
            f"| {count} × {title} | {max(off):.2%} | {np.median(off):.3%} | {np.median(seconds) * 1e6:.0f} "
            f"| {np.median(jittered) * 1e6:.0f} |"
        )
    return rows


def scale_table() -> list[str]:
    """Samples a second of one stage, from one unit to thousands: what jitter leaves of each unit."""
    rng = np.random.default_rng([SEED, 2])
    problem = random_problem(rng, layers=8, types=1)
    rows = ["| units | efficiency, jitter 0.1 | jitter 0.3 | ms a simulation |", "| --- " * 4 + "|"]
    placement = np.zeros(problem.layers, dtype=np.int32)
    work = work_of(problem, placement)
    work = replace(work, serial=0 * work.serial, sync_serial=0 * work.sync_serial, server=0 * work.server)
    for units in (1, 10, 100, 1000, 10_000):
        shares, began = [], time.perf_counter()
        for jitter in (0.1, 0.3):
            one, many = (measure(problem, work, [k], 0, Conditions(jitter=jitter)) for k in (1, units))
            shares.append(f"{many.throughput / one.throughput / units:.1%}")
        rows.append(f"| {units:,} | {' | '.join(shares)} | {(time.perf_counter() - began) / 4 * 1e3:.1f} |")
    return rows


def contest_table(count: int) -> list[str]:
    """The closed form's optimum as it is, its placement with units by simulation, `exact+local` and `rl`."""
    head = ["problem", "layers × types", "closed form as is", "its placement", "exact+local", "rl", "simulations"]
    head += ["seconds", "cheaper"]
    rows = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    tally = {"rl": 0, "exact+local": 0, "same": 0}
    improved = failed = unreached = drawn = 0
    while sum(tally.values()) < count:
        drawn += 1
        problem, i = _problem(drawn - 1), drawn - 1
        rng = np.random.default_rng([SEED, 4, i])
        best = _exact(problem)
        assert best.placement is not None
        traffic = float(work_of(problem, best.placement).shared.sum()) * problem.goal.throughput_floor / GIGA
        share = float(rng.uniform(0.7, 1.5))
        conditions = Conditions(jitter=JITTER, shared_gbps=share * traffic if traffic > 0 else None, seed=i)
        as_is = _as_is(problem, best, conditions)
        placed = Simulated(problem, conditions)
        found = placed.provision(best.placement)
        start = math.inf if found is None else _again(problem, conditions, best.placement, found)
        learned, spent, seconds = _run(problem, conditions, "rl", SIMULATIONS)
        climbed, _, climb_seconds = _run(problem, conditions, "exact+local", spent)
        if math.isinf(learned) and math.isinf(climbed):
            unreached += 1
            continue
        winner = _winner(learned, climbed)
        tally[winner] += 1
        improved += min(learned, climbed) < start * (1 - TIE)
        failed += math.isinf(start)
        mode = f"sync, {problem.goal.micro_batches} micro-batches" if problem.goal.mode == "sync" else "async"
        rows.append(
            f"| {i}: {mode} | {problem.layers} × {problem.types} | {as_is} | {_money(start)} | {_money(climbed)} "
            f"| {_money(learned)} | {spent:,} | {climb_seconds:.0f}, {seconds:.0f} | {winner} |"
        )
        print(rows[-1], flush=True)
    return [
        f"Dollars a million samples. Jitter {JITTER:g}; a network that carries 0.7 to 1.5 times what the closed form's "
        "optimum would send; 60% of the throughput that the random problem asks for. Columns: the closed form's plan "
        "with its own units; its placement with units chosen by simulation; what both searches find. Found plans are "
        "simulated again, longer and with another seed. `simulations` is what `rl` took and `exact+local` was allowed; "
        "seconds are of `exact+local`, `rl`.", "",
        *rows, "",
        f"`rl` was cheaper on {tally['rl']}, `exact+local` on {tally['exact+local']}, and both the same (within "
        f"{TIE:.1%}) on {tally['same']} of {count} problems. On {unreached} more, left out, neither found a plan that "
        f"is fast enough. The closed form's placement, with units chosen by simulation, missed the throughput on "
        f"{failed} of the {count}, and a search improved on it by more than {TIE:.1%} on {improved} (those included).",
    ]  # fmt: skip


def _problem(i: int) -> Problem:
    """A random problem that asks for 60% of the throughput it was drawn with, as chance needs some room."""
    rng = np.random.default_rng([SEED, 3, i])
    layers, types = int(rng.integers(8, 21)), int(rng.integers(2, 9))
    problem = random_problem(rng, layers=layers, types=types, sync=i % 2 == 1)
    return problem.with_goal(replace(problem.goal, min_throughput=0.6 * problem.goal.throughput_floor))


def _exact(problem: Problem) -> Outcome:
    objective = ClosedForm(problem)
    return search(objective, make_method("exact", objective, Settings()))


def _run(problem: Problem, conditions: Conditions, method: str, simulations: int) -> tuple[float, int, float]:
    """Dollars a sample in a longer simulation with another seed, simulations spent and seconds."""
    objective = Simulated(problem, conditions, simulations=simulations)
    outcome = search(objective, make_method(method, objective, Settings()))
    if outcome.placement is None:
        return math.inf, objective.simulations, outcome.seconds
    found = objective.provision(outcome.placement)
    assert found is not None
    return _again(problem, conditions, outcome.placement, found), objective.simulations, outcome.seconds


def _again(problem: Problem, conditions: Conditions, placement: Placement, found: Provisioning) -> float:
    """Dollars a sample in a longer simulation with another seed."""
    fresh = replace(conditions, seed=conditions.seed + 1_000_000, steps=1000)
    got = simulate_units(problem, problem.decode(placement), found.units, found.server_units, fresh)
    return got.usd_per_million_samples / MILLION


def _as_is(problem: Problem, best: Outcome, conditions: Conditions) -> str:
    """The closed form's plan in simulation: its cost, and by how much it misses the throughput."""
    assert best.placement is not None
    found = ClosedForm(problem).provision(best.placement)
    assert found is not None
    names = problem.decode(best.placement)
    got = simulate_units(problem, names, found.units, found.server_units, conditions)
    short = problem.goal.throughput_floor / got.throughput - 1
    return _money(got.usd_per_million_samples / MILLION) + (f", {short:.0%} too slow" if short > 0.005 else "")


def _winner(learned: float, climbed: float) -> str:
    if math.isfinite(learned) and math.isfinite(climbed) and abs(learned / climbed - 1) <= TIE:
        return "same"
    return "rl" if learned < climbed else "exact+local"


def _money(usd_per_sample: float) -> str:
    return f"{usd_per_sample * MILLION:.5f}" if math.isfinite(usd_per_sample) else "none"


def _any_placement(rng: np.random.Generator, problem: Problem) -> Placement:
    kinds = [rng.choice(np.flatnonzero(row)) for row in problem.runnable]
    for layer in range(1, problem.layers):  # runs of layers, as plans have them
        if rng.random() < 0.7 and problem.runnable[layer, kinds[layer - 1]]:
            kinds[layer] = kinds[layer - 1]
    return np.array(kinds, dtype=np.int32)


def main() -> None:
    """Runs all tables and writes them under benchmarks/results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few problems; prints, files nothing")
    quick = parser.parse_args().quick
    today = datetime.date.today().isoformat()
    parts: list[tuple[str, Callable[[], list[str]]]] = [
        ("Nothing random: against the closed form", lambda: agreement_table(20 if quick else 500)),
        ("What stragglers leave of a stage's units", scale_table),
        ("Who finds the cheaper plan", lambda: contest_table(2 if quick else 20)),
    ]
    lines = [f"# Simulated plans, {today}", "", f"{platform.processor() or platform.machine()}, {os.cpu_count()} "
             f"cores, Python {platform.python_version()}; `python benchmarks/simulated.py`."]  # fmt: skip
    for title, table in parts:
        print(f"== {title}", flush=True)
        lines += ["", f"## {title}", "", *table()]
    text = "\n".join(lines) + "\n"
    print(text)
    if not quick:
        (Path(__file__).parent / "results" / f"simulated-{today}.md").write_text(text)


if __name__ == "__main__":
    main()
