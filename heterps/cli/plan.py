"""`heterps plan`: the cheapest plan for a goal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from heterps.cli import options as o
from heterps.errors import InvalidInput

if TYPE_CHECKING:
    from heterps.schedule.problem import Problem
    from heterps.schedule.simulation import Conditions, Contest

OBJECTIVES = ("closed-form", "simulated")

JITTER = 0.1
"""Spread of a unit's time where a simulated objective is given none. Assumed: shared machines."""


def plan(
    profile: o.Profile = None,
    cluster_file: o.ClusterFile = None,
    model: o.Model = None,
    cluster: o.ClusterName = None,
    min_throughput: o.MinThroughput = None,
    samples: o.Samples = None,
    deadline_hours: o.DeadlineHours = None,
    budget_usd: o.BudgetUsd = None,
    max_usd_per_hour: o.MaxUsdPerHour = None,
    method: Annotated[
        str,
        typer.Option(
            help="auto, exact, exact+local, rl, rl-rnn, brute-force, bayesian, genetic, greedy, heuristic, only:TYPE."
        ),
    ] = "auto",
    mode: o.Mode = "async",
    micro_batches: o.MicroBatches = None,
    objective: Annotated[
        str, typer.Option(help="closed-form: the cost model; simulated: the pipeline event by event, see simulate.")
    ] = "closed-form",
    jitter: Annotated[
        float | None, typer.Option(help="With --objective simulated: spread of a unit's time; 0.1 if left out.")
    ] = None,
    shared_gbps: o.SharedGbps = None,
    failures: o.FailuresPerUnitHour = 0.0,
    simulations: Annotated[
        int | None, typer.Option(help="Most simulations of a search, with --objective simulated; 20000 if left out.")
    ] = None,
    seed: o.Seed = 0,
    out: Annotated[str | None, typer.Option(metavar="plan.json", help="Write the plan to a file.")] = None,
    json: o.Json = False,
) -> None:
    """Find the placement and provisioning that meet a goal for the least money."""
    goal = o.make_goal(
        min_throughput=min_throughput, samples=samples, deadline_hours=deadline_hours, budget_usd=budget_usd,
        max_usd_per_hour=max_usd_per_hour, mode=mode, micro_batches=micro_batches,
    )  # fmt: skip
    problem = o.make_problem(profile, cluster_file, model, cluster, goal)
    conditions = _conditions(objective, jitter=jitter, shared_gbps=shared_gbps, failures=failures, seed=seed)
    if simulations is not None and (conditions is None or simulations < 1):
        raise InvalidInput(f"--simulations is {simulations}; it must be 1 or more, and goes with --objective simulated")
    from heterps.schedule.search import Settings

    settings, contest = Settings(seed=seed), None
    with o.progress(f"planning ({method})", quiet=json) as report:
        if conditions is None:
            from heterps.schedule.planner import make_plan

            made = make_plan(problem, method=method, settings=settings, on_progress=report)
        else:
            from heterps.schedule.simulation.contest import SIMULATIONS, plan_simulated

            contest = plan_simulated(
                problem, conditions, method=method, simulations=simulations or SIMULATIONS, settings=settings,
                on_progress=report,
            )  # fmt: skip
            made = contest.chosen.plan
    if out is not None:
        made.save(out)
    if json:
        typer.echo(made.to_text(), nl=False)
        return
    if contest is not None:
        _show_contest(problem, contest)
    else:
        from heterps.report.tables import show_plan

        show_plan(problem, made)
    if out is not None:
        typer.echo(f"written to {out}")


def _conditions(
    objective: str, *, jitter: float | None, shared_gbps: float | None, failures: float, seed: int
) -> Conditions | None:
    """What is to be simulated; None for the closed form, which refuses what it knows nothing of."""
    if objective not in OBJECTIVES:
        raise InvalidInput(f"--objective is {objective!r}; it must be {' or '.join(OBJECTIVES)}")
    if objective == OBJECTIVES[0]:
        for option, value in (("--jitter", jitter), ("--shared-gbps", shared_gbps), ("--failures", failures or None)):
            if value is not None:
                raise InvalidInput(f"{option} goes with --objective simulated: the closed form does not know of it")
        return None
    from heterps.schedule.simulation import Conditions

    return Conditions(
        jitter=JITTER if jitter is None else jitter, shared_gbps=shared_gbps, failures_per_unit_hour=failures, seed=seed
    )


def _show_contest(problem: Problem, contest: Contest) -> None:
    """The chosen plan by the closed form, then both with what they cost in simulation."""
    from rich.console import Console

    from heterps.report.tables import stage_table, stages_line, table, totals
    from heterps.units import format_rate

    console = Console(markup=False, emoji=False)  # names come from files
    console.print(stage_table(problem, contest.chosen.plan))
    console.print(f"by the closed form {totals(contest.chosen.plan)}")
    made = table("\nIn simulation", "method", "$/M samples", "samples/s", "simulations", "units, stage by stage")
    made.columns[-1].justify = "left"
    for entry in (contest.entry, contest.opponent):
        if entry is not None:
            cost = entry.simulation.usd_per_million_samples
            made.add_row(
                entry.method + (" (chosen)" if entry is contest.chosen else ""), f"{cost:.5f}",
                format_rate(entry.simulation.throughput), f"{entry.simulations:,}", stages_line(entry.plan),
            )  # fmt: skip
    console.print(made)
