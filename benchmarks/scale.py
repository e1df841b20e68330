"""How plans scale from one unit to a thousand, simulated from measured costs: the plot and the table of docs/scale.md.

    python benchmarks/scale.py [--check]

Profiles in benchmarks/profiles/ were measured by `heterps profile` (see docs/scale.md), and plans are made from them.
Nothing is timed here, so any machine gives the same; with --check nothing is written, and a difference is an error.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from heterps.api import load_problem
from heterps.report.plots import HALF, plot_scale
from heterps.schedule.goal import Goal
from heterps.schedule.planner import make_plan
from heterps.schedule.simulation import Conditions, Point, scale

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"
BEGIN, END = "<!-- made by benchmarks/scale.py -->", "<!-- end -->"
UNITS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
SHOWN = (1, 10, 100, 1000)
"""Numbers of units in the table."""
SYNC: dict[str, Any] = {"mode": "sync", "micro_batches": 4}


@dataclass(frozen=True)
class Case:
    """One curve: which plan of which profile, under which conditions."""

    name: str
    method: str
    links: str = "catalog"
    goal: dict[str, Any] = field(default_factory=dict)
    conditions: dict[str, Any] = field(default_factory=dict)
    grow_batch: bool = True
    fixed_server: bool = False

    def points(self) -> tuple[Point, ...]:
        """From one unit (or the plan's own, if it has several stages) to a thousand."""
        profile, cluster = (HERE / "profiles" / f"{self.links}-{what}" for what in ("profile.json", "cluster.yaml"))
        problem = load_problem(str(profile), str(cluster), Goal(min_throughput=1.0, **self.goal))
        plan = make_plan(problem, method=self.method)
        own = sum(stage.units for stage in plan.stages)
        units = UNITS if len(plan.stages) == 1 else tuple(n * own for n in UNITS if n * own <= max(UNITS))
        return scale(
            problem, plan, Conditions(**self.conditions), units, fixed_server=self.fixed_server,
            grow_batch=self.grow_batch,
        )  # fmt: skip


FAILING = {"failures_per_unit_hour": 1e-2, "restart_s": 60.0, "checkpoint_every_s": 600.0}
CASES = (
    Case("cores, batch stays at 4,096", "only:cpu", grow_batch=False),
    Case("cores", "only:cpu"),
    Case("cores, one server", "only:cpu", fixed_server=True),
    Case("cores, 100 Gbit/s for all", "only:cpu", conditions={"shared_gbps": 100.0}),
    Case("cores with 10 Gbit/s", "only:cpu", links="fast"),
    Case("cores with 10 Gbit/s, stragglers", "only:cpu", links="fast", conditions={"jitter": 0.2}),
    Case("cores with 10 Gbit/s, failures", "only:cpu", links="fast", conditions=FAILING),
    Case("A100s", "only:a100"),
    Case("A100s, batch stays at 4,096", "only:a100", grow_batch=False),
    Case("cores with 10 Gbit/s, then A100s", "heuristic", links="fast"),
    Case("the same in sync mode, stragglers", "heuristic", links="fast", goal=SYNC, conditions={"jitter": 0.2}),
)


def table(curves: dict[str, tuple[Point, ...]]) -> list[str]:
    """Efficiency at some numbers of units, where it falls below a half, and what limits the largest."""
    rows = [
        f"| case | {' | '.join(f'{n:,}' for n in SHOWN)} | half is lost at | limit at the largest | it alone takes |",
        "| --- " * (len(SHOWN) + 4) + "|",
    ]
    for name, points in curves.items():
        found = {point.units: f"{point.efficiency:.0%}" for point in points}
        broken = next((f"{point.units:,}: {point.limit}" for point in points if point.efficiency < HALF), "–")
        last = points[-1]
        cells = [found.get(n, "") for n in SHOWN]
        if last.units not in SHOWN:
            cells[-1] = f"{last.efficiency:.0%} (at {last.units})"
        limit = f"{last.limit or 'none'} | {last.limit_costs:.0%}"
        rows.append(f"| {name} | {' | '.join(cells)} | {broken} | {limit} |")
    return rows


def main() -> None:
    """Writes the plot, and the table into its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only see that the page shows what comes out now")
    check = parser.parse_args().check
    curves = {case.name: case.points() for case in CASES}
    made = "\n".join(table(curves))
    page = DOCS / "scale.md"
    before, _, rest = page.read_text().partition(BEGIN)
    text = f"{before}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"
    print(made)
    if check:
        sys.exit(0 if text == page.read_text() else f"{page} is not what comes out now; run python benchmarks/scale.py")
    page.write_text(text)
    plot_scale(curves, str(DOCS / "scale.png"))


if __name__ == "__main__":
    main()
