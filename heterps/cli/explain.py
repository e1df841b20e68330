"""`heterps explain`: what a plan costs where, and what else there is."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from heterps.cli import options as o
from heterps.errors import InvalidInput

if TYPE_CHECKING:
    from heterps.plan import Plan
    from heterps.schedule.problem import Problem

SAME = 1e-6
"""Predicted figures that differ from the cost model's by no more than this share are taken for the same."""


def explain(
    plan_file: Annotated[str, typer.Argument(metavar="PLAN", help="plan.json.")],
    profile: o.Profile = None,
    cluster_file: o.ClusterFile = None,
    model: o.Model = None,
    cluster: o.ClusterName = None,
    json: o.Json = False,
) -> None:
    """Break a plan down by stage, and price the next best alternatives."""
    from heterps.plan import Plan
    from heterps.schedule.planner import check_fresh, goal_of

    plan = Plan.load(plan_file)
    try:
        goal = goal_of(plan)
    except InvalidInput as error:
        raise InvalidInput(f"{plan_file}: inputs: {error}; plan again") from None
    problem = o.make_problem(profile, cluster_file, model, cluster, goal)
    check_fresh(plan, problem, source=plan_file)
    _check_fits(plan, problem, source=plan_file)
    plan = _recomputed(plan, problem, source=plan_file)
    if json:
        from heterps.report.explanation import explanation_json

        typer.echo(explanation_json(problem, plan))
        return
    from heterps.report.explanation import show_explanation

    show_explanation(problem, plan)


def _check_fits(plan: Plan, problem: Problem, *, source: str) -> None:
    """`InvalidInput` if the plan, edited or made by another program, is not one for this profile and cluster."""
    layers, types = problem.profile.layers, problem.cluster.types
    if len(plan.placement) != len(layers):
        raise InvalidInput(
            f"{source}: placement has {len(plan.placement)} entries, {problem.profile_source} has {len(layers)} "
            "layers; plan again"
        )
    for i, (name, layer) in enumerate(zip(plan.placement, layers, strict=True)):
        if name not in types:
            rule = f"unknown type; {problem.cluster_source} has {', '.join(types)}"
        elif name not in layer.costs:
            rule = f"{problem.profile_source} has costs of layer {layer.name!r} for {', '.join(layer.costs)} alone"
        else:
            continue
        raise InvalidInput(f"{source}: placement[{i}] = {name!r}: {rule}; plan again")
    _check_server(plan, problem, source=source)


def _check_server(plan: Plan, problem: Problem, *, source: str) -> None:
    """The plan's server must be the cluster's, and there where layers give it work."""
    server, serves = plan.parameter_server, problem.cluster.parameter_server
    if server is not None and server.type != serves:
        rule = f"{problem.cluster_source} has {serves!r} for it" if serves else f"{problem.cluster_source} has none"
        raise InvalidInput(f"{source}: parameter_server.type = {server.type!r}: {rule}; plan again")
    work = sum(problem.server[i, problem.names.index(name)] for i, name in enumerate(plan.placement))
    if work > 0 and (server is None or server.units == 0):
        what = "parameter_server is missing" if server is None else "parameter_server.units = 0"
        raise InvalidInput(f"{source}: {what}: the layers give it work (ps_s), so it needs 1 unit or more; plan again")


def _recomputed(plan: Plan, problem: Problem, *, source: str) -> Plan:
    """The plan with the figures of the cost model; notes on stderr say where its own differ and which limits it breaks.

    Nothing stays proved of a plan whose figures differ or that breaks a limit.
    """
    from heterps.plan import Predicted
    from heterps.schedule.cost import stage_times, violations
    from heterps.schedule.planner import breakdown
    from heterps.units import MILLION

    got = breakdown(problem, plan)
    figures = {
        "throughput": got.throughput,
        "usd_per_hour": got.usd_per_hour,
        "usd_per_million_samples": got.usd_per_sample * MILLION,
    }
    wrong = [
        f"{name} {figure:g}, not {had:g}" for name, figure in figures.items()
        if not math.isclose(had := getattr(plan.predicted, name), figure, rel_tol=SAME)
    ]  # fmt: skip
    told = [f"predicted is not what the cost model gives, which is shown: {'; '.join(wrong)}"] if wrong else []
    stages = stage_times(problem.profile, problem.cluster, plan.placement)
    units = [stage.units for stage in plan.stages]
    server = plan.parameter_server.units if plan.parameter_server else 0
    told += [f"the plan breaks a limit: {what}" for what in violations(problem.cluster, stages, units, server)]
    for line in told:
        sys.stderr.write(f"heterps: note: {source}: {line}\n")
    search = plan.search.model_copy(update={"optimal": False, "lower_bound_usd_per_million_samples": None})
    return plan.model_copy(update={"predicted": Predicted(**figures), "search": search}) if told else plan
