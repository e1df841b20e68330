"""Arguments and options that several commands share, and how they become a problem."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from heterps.errors import InvalidInput

if TYPE_CHECKING:
    from heterps.schedule.goal import Goal
    from heterps.schedule.planner import OnProgress
    from heterps.schedule.problem import Problem

SEEDS = 2**32
"""Seeds that every method can be given."""


def _seed(given: int) -> int:
    """Any whole number from 0 on; larger ones than all methods take are reduced here, alike for all of them."""
    if given < 0:
        raise InvalidInput(f"--seed is {given}; it must be a whole number of 0 or more")
    return given % SEEDS


def _floor(given: float | None) -> float | None:
    """A throughput of 0 means that any will do."""
    if given is not None and not 0 <= given < math.inf:
        raise InvalidInput(f"--min-throughput is {given:g}; it must be a number of 0 or more (0: any throughput)")
    return given


Profile = Annotated[str | None, typer.Argument(metavar="PROFILE", help="profile.json; or use --model.")]
ClusterFile = Annotated[str | None, typer.Argument(metavar="CLUSTER", help="cluster.yaml; or use --cluster.")]
Model = Annotated[
    str | None, typer.Option("--model", help="A built-in model in place of PROFILE: ctrdnn, matchnet, 2emb, nce.")
]
ClusterName = Annotated[
    str | None, typer.Option("--cluster", help="A built-in cluster (paper) or a file, in place of CLUSTER.")
]
MinThroughput = Annotated[float | None, typer.Option(help="Samples a second the plan must reach.", callback=_floor)]
Samples = Annotated[float | None, typer.Option(help="Samples of the whole job; with --deadline-hours or --budget-usd.")]
DeadlineHours = Annotated[float | None, typer.Option(help="Hours in which the samples must be trained.")]
BudgetUsd = Annotated[float | None, typer.Option(help="Money for the samples: the fastest plan within it.")]
MaxUsdPerHour = Annotated[float | None, typer.Option(help="Most dollars an hour, with any goal.")]
Mode = Annotated[str, typer.Option(help="async: the pipeline is always full; sync: it drains at every step.")]
MicroBatches = Annotated[int | None, typer.Option(help="Micro-batches a step, with --mode sync.")]
Seed = Annotated[int, typer.Option(help="Seed of the methods that draw at random.", callback=_seed)]
Jitter = Annotated[
    float, typer.Option(help="Spread of a unit's time from one micro-batch to the next: sigma of its logarithm.")
]
SharedGbps = Annotated[float | None, typer.Option(help="Gigabits a second of the network that all stages share.")]
FailuresPerUnitHour = Annotated[float, typer.Option("--failures", help="Failures of a unit in an hour, such as 1e-4.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON alone.")]
Plot = Annotated[str | None, typer.Option(metavar="FILE.png", help="Write a plot.")]


def make_goal(
    *,
    min_throughput: float | None = None,
    samples: float | None = None,
    deadline_hours: float | None = None,
    budget_usd: float | None = None,
    max_usd_per_hour: float | None = None,
    mode: str = "async",
    micro_batches: int | None = None,
) -> Goal:
    """The goal that the options state."""
    from heterps.schedule.goal import Goal

    return Goal(
        min_throughput=min_throughput, samples=samples, deadline_hours=deadline_hours, budget_usd=budget_usd,
        max_usd_per_hour=max_usd_per_hour, mode=mode, micro_batches=micro_batches,  # type: ignore[arg-type]
    )  # fmt: skip


def make_problem(profile: str | None, cluster: str | None, model: str | None, name: str | None, goal: Goal) -> Problem:
    """The problem that arguments and options name. With --model, a single argument is the cluster."""
    from heterps.api import load_problem
    from heterps.schedule.paper import paper_profile

    if model is not None and profile is not None and cluster is None and name is None:
        profile, cluster = None, profile
    if (profile is None) == (model is None):
        raise InvalidInput("give either PROFILE or --model" + ("; both were given" if model else ""))
    if (cluster is None) == (name is None):
        raise InvalidInput("give either CLUSTER or --cluster" + ("; both were given" if name else ""))
    source = cluster or name
    assert source is not None
    if model is not None:
        problem = load_problem(paper_profile(model), source, goal)
    else:
        assert profile is not None
        problem = load_problem(profile, source, goal)
    for note in problem.unused_types():
        sys.stderr.write(f"heterps: note: {note}\n")
    return problem


@contextmanager
def progress(label: str, *, quiet: bool = False) -> Iterator[OnProgress]:
    """A progress bar on stderr while a search runs; nothing if stderr is no terminal or `quiet`."""
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    from heterps.schedule.search import Progress

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True, disable=quiet or not sys.stderr.isatty()) as bar:
        task = bar.add_task(label, total=None)

        def report(now: Progress) -> None:
            bar.update(task, description=f"{label}: {now.evaluations:,} placements, best {now.best:.4g}")

        yield report
