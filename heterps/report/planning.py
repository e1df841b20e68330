"""What a report says of planning: the chain, the plans, the frontier, the methods."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from heterps.errors import HeterPSError
from heterps.plan import Cluster, Plan, Profile
from heterps.report.files import RunFiles, number
from heterps.schedule.cost import Breakdown
from heterps.schedule.frontier import frontier
from heterps.schedule.infeasible import NO_MONEY_LIMIT_USD
from heterps.schedule.planner import breakdown, goal_of
from heterps.schedule.problem import Problem

FRONTIER_POINTS = 24
METHOD_FIGURES = ("usd_per_million_samples", "usd_per_hour", "throughput", "gap", "seconds", "evaluations")
NO_FRONTIER = (
    "There is no frontier.json, and to compute it takes the plan, profile.json and cluster.yaml: see heterps run."
)


def type_names(files: RunFiles, ran: Iterable[str]) -> list[str]:
    """All types that anything in the run names, in an order that gives each its colour."""
    names: list[str] = []
    for cluster in (files.rent_cluster, files.cluster):
        names += cluster.types if cluster is not None else ()
    for plan in (files.rent_plan, files.plan):
        names += plan.types if plan is not None else ()
    for layer in files.rent_profile.layers if files.rent_profile is not None else ():
        names += layer.costs
    return list(dict.fromkeys([*names, *ran]))


def types(files: RunFiles, ran: Iterable[str]) -> list[dict[str, Any]]:
    """Each type with what is known of it."""
    found = []
    for name in type_names(files, ran):
        known: dict[str, Any] = {"name": name}
        for plan in (files.plan, files.rent_plan):
            if plan is not None and name in plan.types:
                known |= plan.types[name].model_dump(mode="json")
        for cluster in (files.cluster, files.rent_cluster):
            if cluster is not None and name in cluster.types:
                known |= cluster.types[name].model_dump(mode="json", exclude_none=True)
        found.append(known)
    return found


def chain(profile: Profile) -> dict[str, Any]:
    """The layers with their costs on each type."""
    layers = [
        {
            "name": layer.name, "kind": layer.kind, "output_bytes": layer.output_bytes,
            "state_bytes": layer.state_bytes, "sharded": layer.sharded,
            "costs": {
                name: {"compute_s": cost.compute_s, "sync_s": cost.sync_s, "ps_s": cost.ps_s, "source": cost.source}
                for name, cost in layer.costs.items()
            },
        }
        for layer in profile.layers
    ]  # fmt: skip
    sources = {cost.source for layer in profile.layers for cost in layer.costs.values()}
    return {
        "model": profile.model,
        "batch_size": profile.batch_size,
        "layers": layers,
        "derived": sources == {"derived"},
    }


def plan_section(plan: Plan, profile: Profile | None, cluster: Cluster | None) -> dict[str, Any]:
    """A plan's stages, units and money, and, with the files it was made from, each stage's time a sample."""
    problem, note = _problem(plan, profile, cluster)
    got = breakdown(problem, plan) if problem is not None else None
    names = [layer.name for layer in profile.layers] if profile is not None else []
    if len(names) != len(plan.placement):
        names = [f"layer {i}" for i in range(len(plan.placement))]
    server = plan.parameter_server
    return {
        "model": plan.model,
        "method": plan.method,
        "layers": names,
        "placement": list(plan.placement),
        "stages": [_stage(plan, i, got) for i in range(len(plan.stages))],
        "server": None if server is None or not server.units else _server(plan, got),
        "slowest": got.slowest if got is not None else None,
        "predicted": plan.predicted.model_dump(mode="json"),
        "search": plan.search.model_dump(mode="json"),
        "gap": gap(plan),
        "goal": _goal(plan),
        "note": note,
    }  # fmt: skip


def _goal(plan: Plan) -> dict[str, Any]:
    """What was asked for; `fastest` stands for a budget that is none."""
    stated = plan.inputs.model_dump(mode="json", exclude_none=True)
    if stated.get("budget_usd", 0) >= NO_MONEY_LIMIT_USD:
        stated |= {"fastest": True, "budget_usd": None, "samples": None}
    return {key: value for key, value in stated.items() if value and not key.endswith("sha256")}


def gap(plan: Plan) -> float | None:
    """The share by which a plan may be dearer than the best one; 0 if it is proved optimal, None if nothing is."""
    bound = plan.search.lower_bound_usd_per_million_samples
    if plan.search.optimal:
        return 0.0
    return max(0.0, plan.predicted.usd_per_million_samples / bound - 1) if bound else None


def frontier_section(files: RunFiles) -> tuple[dict[str, Any] | None, str | None]:
    """The frontier with the plan that was chosen on it; where no file has it, it is computed. Else why there is none.

    It is that of what is to be rented, if there is such a plan, else of what ran.
    """
    of = "rent" if files.rent_plan is not None else "run"
    plan = files.rent_plan or files.plan
    profile, cluster = (files.rent_profile, files.rent_cluster) if of == "rent" else (files.profile, files.cluster)
    given = files.frontier.get("points") if files.frontier is not None else None
    shown = [_point(point) for point in (given if isinstance(given, list) else ()) if isinstance(point, dict)]
    points = [point for point in shown if point is not None]
    if not points:
        if plan is None or profile is None or cluster is None:
            return None, NO_FRONTIER
        try:
            points = _compute(plan, profile, cluster)
        except HeterPSError as error:
            return None, f"The frontier cannot be computed: {error}"
    chosen = None
    if plan is not None:
        chosen = plan.predicted.model_dump(mode="json") | {"min_throughput": plan.inputs.min_throughput}
    return {"of": of, "points": points, "chosen": chosen}, None


def comparison_section(found: dict[str, Any]) -> dict[str, Any]:
    """The methods, best first, those without a plan last."""
    given = found.get("methods")
    methods = [_method(row) for row in (given if isinstance(given, list) else ()) if isinstance(row, dict)]
    methods.sort(key=lambda row: (row["gap"] is None, row["gap"] or 0.0))
    bounds = ("lower_bound_usd_per_million_samples", "lower_bound_seconds_per_million_samples")
    return {**{key: number(found.get(key)) for key in bounds}, "methods": methods}


def _method(row: dict[str, Any]) -> dict[str, Any]:
    """A method with all figures of its plan, or with none."""
    figures = {key: number(row.get(key)) for key in METHOD_FIGURES}
    placement = row.get("placement")
    if None in figures.values():
        figures = dict.fromkeys(figures)
    return {
        "method": str(row.get("method")), "reason": str(row.get("reason") or ""), **figures,
        "placement": [str(name) for name in placement] if isinstance(placement, list) else [],
    }  # fmt: skip


def _problem(plan: Plan, profile: Profile | None, cluster: Cluster | None) -> tuple[Problem | None, str | None]:
    """What the plan was made for, or why the files beside it cannot tell."""
    if profile is None or cluster is None:
        return None, "Times of the stages need the profile and the cluster that the plan was made from."
    made_from = plan.inputs.profile_sha256, plan.inputs.cluster_sha256
    if made_from != (profile.sha256, cluster.sha256):
        return None, "The profile or the cluster beside this plan is not the one it was made from: no stage times."
    try:
        problem = Problem(profile, cluster, goal_of(plan))
        breakdown(problem, plan)
    except (HeterPSError, KeyError, ValueError) as error:
        return None, f"The stages' times cannot be computed: {error}"
    return problem, None


def _stage(plan: Plan, number: int, got: Breakdown | None) -> dict[str, Any]:
    stage = plan.stages[number]
    found: dict[str, Any] = {
        "first": stage.first, "last": stage.last, "type": stage.type, "units": stage.units,
        "usd_per_hour": stage.units * plan.types[stage.type].price_per_hour,
    }  # fmt: skip
    if got is not None:
        cost = got.stages[number]
        found |= {"compute_s": cost.compute_s, "communication_s": cost.communication_s, "seconds": cost.seconds,
                  "binds": cost.binds, "idle": cost.idle}  # fmt: skip
    return found


def _server(plan: Plan, got: Breakdown | None) -> dict[str, Any]:
    server = plan.parameter_server
    assert server is not None
    found: dict[str, Any] = {
        "type": server.type, "units": server.units,
        "usd_per_hour": server.units * plan.types[server.type].price_per_hour,
    }  # fmt: skip
    if got is not None and got.server is not None:
        found |= {"seconds": got.server.seconds, "idle": got.server.idle}
    return found


def _compute(plan: Plan, profile: Profile, cluster: Cluster) -> list[dict[str, Any]]:
    goal = replace(goal_of(plan), samples=None, deadline_hours=None, budget_usd=None, min_throughput=0.0)
    plans = frontier(Problem(profile, cluster, goal), points=FRONTIER_POINTS)
    found = [
        _point({**plan.to_dict(), **plan.to_dict()["predicted"], "optimal": plan.search.optimal}) for plan in plans
    ]
    return [point for point in found if point is not None]


def _point(point: dict[str, Any]) -> dict[str, Any] | None:
    """What is shown of a point, its units in one line, the server's last; None if it has no place on the chart."""
    throughput, cost = number(point.get("throughput")), number(point.get("usd_per_million_samples"))
    if throughput is None or throughput <= 0 or cost is None:
        return None
    given = point.get("stages")
    stages = [stage for stage in (given if isinstance(given, list) else ()) if isinstance(stage, dict)]
    line = " → ".join(f"{stage.get('units')} {stage.get('type')}" for stage in stages)
    server = point.get("parameter_server")
    if isinstance(server, dict) and server.get("units"):
        line += f" + {server['units']} {server.get('type')}"
    return {
        "throughput": throughput,
        "usd_per_million_samples": cost,
        "usd_per_hour": number(point.get("usd_per_hour")),
        "optimal": point.get("optimal") is True,
        "units": line,
    }
