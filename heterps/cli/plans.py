"""The plans of a job before it runs: what layers cost, which plans there are, what they cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import typer
from rich.console import Console

if TYPE_CHECKING:
    from heterps.catalog import Catalog
    from heterps.job import Job
    from heterps.loop.planning import Choice, Planned
    from heterps.profile.measurement import Measurement


def plan_given(job: Job, measured: Measurement, catalog: Catalog) -> Choice:
    """The plan that the job names, whatever others there are."""
    from heterps.loop.here import missing
    from heterps.loop.measuring import cluster_of_job, cluster_of_plan
    from heterps.loop.planning import Choice, Planned, best_here
    from heterps.plan import Plan
    from heterps.profile.assemble import assemble
    from heterps.schedule.planner import goal_of
    from heterps.schedule.problem import Problem

    plan = Plan.load(str(job.plan.file))
    cluster = cluster_of_job(job, catalog)
    if cluster is None or cluster.sha256 != plan.inputs.cluster_sha256:
        cluster = cluster_of_plan(plan)  # made for another one: its own types are what it is laid out on
    problem = Problem(assemble(measured, cluster, catalog=catalog), cluster, goal_of(plan))
    wanted = Planned(problem, plan)
    lacking = missing(plan, cluster, measured.hardware, catalog)
    return Choice(wanted if not lacking else best_here(job, measured, catalog=catalog), wanted, lacking)


def show_plans(job: Job, choice: Choice, *, compare: bool, here: bool = True) -> dict[str, str]:
    """Prints what layers cost and which plans there are; gives the files that a report needs.

    Unless the run is to be `here`, what this machine lacks does not matter.
    """
    from heterps.report.profiles import profile_table
    from heterps.report.tables import show_comparison, show_plan
    from heterps.schedule.comparison import compare_methods
    from heterps.schedule.frontier import frontier, frontier_json
    from heterps.schedule.search import Settings

    console = Console(markup=False, emoji=False)  # names come from files
    first = choice.wanted or choice.here
    console.print(profile_table(first.problem.profile, list(first.problem.cluster.types)))
    files: dict[str, str] = {}
    if compare and job.plan.file is None:
        console.print()
        found = compare_methods(first.problem, methods=None, settings=Settings())
        show_comparison(first.problem, found)
        files["comparison.json"] = found.to_json()
    any_speed = replace(first.problem.goal, samples=None, deadline_hours=None, budget_usd=None, min_throughput=0.0)
    files["frontier.json"] = frontier_json(list(frontier(first.problem.with_goal(any_speed), points=16)))
    console.print()
    if choice.infeasible is not None:
        console.print("The best plan for this machine:\n")
    show_plan(first.problem, first.plan)
    if first is not choice.wanted or job.plan.file is not None:
        _say_what_is_missed(job, first)
    if here and choice.lacking and choice.wanted is not None:
        rent = ", ".join(f"{units} × {name}" for name, units in choice.lacking.items())
        console.print(f"\nThis machine lacks what the plan needs; to run it, rent {rent}.", highlight=False)
        console.print("The best plan for this machine:\n")
        show_plan(choice.here.problem, choice.here.plan)
        _say_what_is_missed(job, choice.here)
        files |= {"rent/plan.json": choice.wanted.plan.to_text(),
                  "rent/cluster.yaml": choice.wanted.problem.cluster.to_text(),
                  "rent/profile.json": choice.wanted.problem.profile.to_text()}  # fmt: skip
    return files


def say_cost(job: Job, choice: Choice, *, here: bool = True) -> None:
    """What the whole job would take and cost, by the plan and, if it is to run `here`, by that for this machine."""
    from heterps.loop.measuring import job_samples
    from heterps.units import MILLION, format_usd

    samples = job_samples(job)
    own = choice.here if here and choice.here is not choice.wanted else None
    for what, planned in (("the plan", choice.wanted), ("this machine", own)):
        if planned is None:
            continue
        was = planned.plan.predicted
        if samples is None:
            text = f"{format_usd(was.usd_per_million_samples)} a million samples"
        else:
            hours = samples / was.throughput / 3600
            money = format_usd(samples / MILLION * was.usd_per_million_samples)
            text = f"{samples:,.0f} samples in {_duration(hours)} for {money}"
        typer.echo(f"{what}: {text}")


def _duration(hours: float) -> str:
    return f"{hours:.3g} h" if hours >= 1 else f"{hours * 60:.3g} min" if hours >= 1 / 60 else f"{hours * 3600:.3g} s"


def check_first(job: Job, catalog: Catalog) -> None:
    """Refuses what can be refused before anything is measured: the cluster, its GPUs, the plan's file."""
    from heterps.loop.measuring import cluster_of_job
    from heterps.plan import Plan
    from heterps.profile.assemble import find_type
    from heterps.profile.hardware import here

    cluster, hardware = cluster_of_job(job, catalog), here()
    if cluster is not None:
        with job.naming("cluster"):
            for name, kind in cluster.types.items():
                find_type(name, kind, hardware, catalog)
    if job.plan.file is not None:
        Plan.load(job.plan.file)


def _say_what_is_missed(job: Job, planned: Planned) -> None:
    """Says which of the job's goals a plan does not meet."""
    from heterps.loop.planning import stated_goal
    from heterps.units import format_rate, format_usd

    goal, was = stated_goal(job), planned.plan.predicted
    told = []
    if was.throughput < goal.throughput_floor * (1 - 1e-6):
        told.append(f"{format_rate(goal.throughput_floor)} are asked for")
    if goal.max_usd_per_hour is not None and was.usd_per_hour > goal.max_usd_per_hour:
        told.append(f"at most {format_usd(goal.max_usd_per_hour)} an hour is allowed")
    if told:
        Console().print(f"It misses the job's goal: {' and '.join(told)}.", highlight=False)
