"""From a problem to a plan: search, prove, write down."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from heterps.errors import Infeasible, InvalidInput
from heterps.plan import Plan
from heterps.schedule.cost import Breakdown, evaluate, stage_runs
from heterps.schedule.goal import Goal
from heterps.schedule.infeasible import explain_infeasible, why_not_alone
from heterps.schedule.methods import ONLY, make_method, resolve
from heterps.schedule.objective import ClosedForm, Objective, Provisioning
from heterps.schedule.problem import Problem
from heterps.schedule.search import Outcome, Progress, Settings, search
from heterps.units import MILLION

OPTIMAL_GAP = 1e-6

OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, eq=False)
class Proof:
    """What `exact` proved of a problem: the best value there is, and the least there can be (the same unit)."""

    best: Outcome
    lower: float


def prove(problem: Problem, *, settings: Settings = Settings(), on_progress: OnProgress | None = None) -> Proof:  # noqa: B008
    """Runs `exact`; raises `Infeasible`, with what is reachable, if there is no plan."""
    objective = ClosedForm(problem)
    outcome = search(objective, make_method("exact", objective, settings), on_progress)
    if outcome.placement is None:
        raise explain_infeasible(problem)
    if outcome.value == 0:
        raise InvalidInput(
            "nothing limits the throughput, so there is no fastest plan; give --max-usd-per-hour, or limits"
        )
    return Proof(outcome, outcome.proved)


def make_plan(
    problem: Problem,
    *,
    method: str = "auto",
    settings: Settings = Settings(),  # noqa: B008
    objective: Objective | None = None,
    proof: Proof | None = None,
    on_progress: OnProgress | None = None,
) -> Plan:
    """The plan a method finds, with the gap to the optimum that `exact` proves.

    The objective is the closed form unless another is given. Pass the proof if the problem has been proved before.

    Raises:
        Infeasible: if no plan meets the goal, or the method finds none.
        InvalidInput: for an unknown method or one that refuses the problem.
    """
    objective = ClosedForm(problem) if objective is None else objective
    name = resolve(method, objective)
    if name == "exact" and objective.closed_form:
        proof = prove(problem, settings=settings, on_progress=on_progress)
        outcome = proof.best
    else:
        outcome = search(objective, make_method(name, objective, settings), on_progress)
        if proof is None and objective.closed_form:
            proof = prove(problem, settings=settings)
    if outcome.placement is None:
        message = f"method {method} found no plan that meets the goal, though there is one: use method exact"
        if name.startswith(ONLY) and objective.closed_form and not problem.goal.fastest:
            message += f". {why_not_alone(problem, name.removeprefix(ONLY))}"
        raise Infeasible(message)
    found = objective.provision(outcome.placement)
    assert found is not None
    goal = problem.goal
    if goal.fastest and proof is not None:
        # The fastest plan is rarely the cheapest as fast: another search, at its throughput, for the money.
        reached = found.throughput * (1 - 1e-9)
        at_least = replace(goal, samples=None, budget_usd=None, min_throughput=reached)
        cheapest = prove(problem.with_goal(at_least), settings=settings)
        as_fast = outcome.value <= proof.lower * (1 + OPTIMAL_GAP)
        if name == "exact":
            placement = cheapest.best.placement
            assert placement is not None
            again = ClosedForm(problem.with_goal(at_least)).provision(placement)
            assert again is not None
            found, outcome = again, replace(outcome, placement=placement)
        return _write(problem, name, outcome, found, cheapest.lower, optimal=as_fast)
    lower = None if proof is None else proof.lower
    optimal = lower is not None and found.usd_per_sample <= lower * (1 + OPTIMAL_GAP)
    return _write(problem, name, outcome, found, lower, optimal=optimal)


def plan_of_placement(problem: Problem, placement: Sequence[str], *, method: str = "given") -> Plan:
    """The plan of a placement with its best units; nothing is proved of it.

    Raises:
        Infeasible: if no units make it meet the goal.
    """
    encoded = problem.encode(placement)[0]
    found = ClosedForm(problem).provision(encoded)
    if found is None:
        raise Infeasible("this placement cannot meet the goal")
    outcome = Outcome(placement=encoded, value=found.usd_per_sample, proved=0.0, evaluations=1, seconds=0.0)
    return _write(problem, method, outcome, found, None, optimal=False)


def breakdown(problem: Problem, plan: Plan) -> Breakdown:
    """What a plan gives, stage by stage."""
    server = plan.parameter_server.units if plan.parameter_server else 0
    units = [stage.units for stage in plan.stages]
    return evaluate(problem.profile, problem.cluster, plan.placement, units, server, goal=problem.goal)


def goal_of(plan: Plan) -> Goal:
    """The goal a plan was made for."""
    inputs = plan.inputs
    stated = {"samples": inputs.samples, "deadline_hours": inputs.deadline_hours, "budget_usd": inputs.budget_usd}
    return Goal(
        min_throughput=inputs.min_throughput if inputs.samples is None else None,
        **stated,
        max_usd_per_hour=inputs.max_usd_per_hour,
        mode=inputs.mode or "async",
        micro_batches=inputs.micro_batches,
    )


def check_fresh(plan: Plan, problem: Problem, *, source: str = "plan") -> None:
    """`InvalidInput` if the plan was made from another profile or cluster."""
    for what, had, has, name in (
        ("profile", plan.inputs.profile_sha256, problem.profile.sha256, problem.profile_source),
        ("cluster", plan.inputs.cluster_sha256, problem.cluster.sha256, problem.cluster_source),
    ):
        if had != has:
            raise InvalidInput(
                f"{source}: inputs.{what}_sha256 = {had!r}: the plan is stale: {name} has {has!r}; plan again"
            )


def _write(
    problem: Problem, method: str, outcome: Outcome, found: Provisioning, lower: float | None, *, optimal: bool
) -> Plan:
    assert outcome.placement is not None
    placement = problem.decode(outcome.placement)
    goal, cluster = problem.goal, problem.cluster
    got = evaluate(problem.profile, cluster, placement, found.units, found.server_units, goal=goal)
    used = {*placement, *([cluster.parameter_server] if cluster.parameter_server else [])}
    bound = None if lower is None or not math.isfinite(lower) else min(lower, got.usd_per_sample) * MILLION
    inputs = {
        "profile_sha256": problem.profile.sha256,
        "cluster_sha256": cluster.sha256,
        "min_throughput": float(goal.throughput_floor),
        "max_usd_per_hour": goal.max_usd_per_hour,
        "samples": goal.samples,
        "deadline_hours": goal.deadline_hours,
        "budget_usd": goal.budget_usd,
        "mode": "sync" if goal.mode == "sync" else None,
        "micro_batches": goal.micro_batches,
    }
    return Plan.from_dict({
        "format": "heterps.plan/1",
        "model": problem.profile.model,
        "method": method,
        "placement": list(placement),
        "types": {
            name: {"device": kind.device, "price_per_hour": kind.price_per_hour}
            for name, kind in cluster.types.items() if name in used
        },
        "stages": [
            {"first": first, "last": last, "type": name, "units": units}
            for (first, last, name), units in zip(stage_runs(placement), found.units, strict=True)
        ],
        "parameter_server": None if cluster.parameter_server is None
        else {"type": cluster.parameter_server, "units": found.server_units},
        "predicted": {
            "throughput": got.throughput,
            "usd_per_hour": got.usd_per_hour,
            "usd_per_million_samples": got.usd_per_sample * MILLION,
        },
        "search": {
            "seconds": outcome.seconds,
            "evaluations": outcome.evaluations,
            "lower_bound_usd_per_million_samples": bound,
            "optimal": optimal,
        },
        "inputs": {key: value for key, value in inputs.items() if value is not None},
    })  # fmt: skip
