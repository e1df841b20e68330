"""Plans for the simulated objective: what a method finds, and beside it its opponent.

Where the objective has no closed form nothing is proved, so a learned plan is worth what it gains over the obvious
alternative: the closed form's proved optimum, improved by local search (`exact+local`) with as many simulations.
"""

from __future__ import annotations

from dataclasses import dataclass

from heterps.errors import Infeasible
from heterps.plan import Plan
from heterps.schedule.methods import AUTO, LOCAL, resolve
from heterps.schedule.planner import OnProgress, make_plan, prove
from heterps.schedule.problem import Problem
from heterps.schedule.search import Settings
from heterps.schedule.simulation.conditions import Conditions
from heterps.schedule.simulation.objective import Simulated
from heterps.schedule.simulation.result import Simulation, simulate_plan
from heterps.units import format_rate

SIMULATIONS = 20_000
"""Simulations a search may make: some seconds to a minute."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A plan, its simulation over all steps of the conditions, and how many simulations the search for it took."""

    method: str
    plan: Plan
    simulation: Simulation
    simulations: int


@dataclass(frozen=True, slots=True)
class Contest:
    """A method's entry and its opponent's; None where one found no plan, or where the method is the opponent itself.

    `chosen` is the method's, or with method `auto` the cheaper one in simulation.
    """

    entry: Entry | None
    opponent: Entry | None
    chosen: Entry


def plan_simulated(
    problem: Problem,
    conditions: Conditions,
    *,
    method: str = AUTO,
    simulations: int = SIMULATIONS,
    settings: Settings = Settings(),  # noqa: B008
    on_progress: OnProgress | None = None,
) -> Contest:
    """The plan that a method finds on the simulated objective, and that of its opponent with the same simulations.

    `predicted` in the plans is the closed form's, as in every plan; the simulated figures are in `search.simulated`.

    Raises:
        Infeasible: if no plan meets the goal, in the closed form or in simulation.
        InvalidInput: for a method that refuses the objective, or the goal of the fastest plan within a budget.
    """
    name = resolve(method, Simulated(problem, conditions))
    prove(problem, settings=settings)
    objective = Simulated(problem, conditions, simulations=simulations)
    entry = _enter(objective, conditions, name, settings, on_progress)
    fastest, opponent = objective.fastest, None
    if name != LOCAL:
        objective = Simulated(problem, conditions, simulations=objective.simulations)
        opponent = _enter(objective, conditions, LOCAL, settings, on_progress)
        fastest = max(fastest, objective.fastest)
    found = [made for made in ((entry, opponent) if method == AUTO else (entry,)) if made is not None]
    if not found:
        raise Infeasible(
            f"{name} found no plan that reaches {format_rate(problem.goal.throughput_floor)} in simulation, though the "
            f"closed form has one; the fastest that was simulated reaches {format_rate(fastest)}. Ask for less, or see "
            "with heterps simulate what the closed form's plan loses to what"
        )
    chosen = min(found, key=lambda candidate: candidate.simulation.usd_per_million_samples)
    return Contest(entry, opponent, chosen)


def _enter(
    objective: Simulated, conditions: Conditions, method: str, settings: Settings, on_progress: OnProgress | None
) -> Entry | None:
    """What a method finds, simulated over all steps of the conditions; None if it finds nothing."""
    problem = objective.problem
    try:
        plan = make_plan(problem, method=method, objective=objective, settings=settings, on_progress=on_progress)
    except Infeasible:
        return None
    simulation = simulate_plan(problem, plan, conditions)
    written = plan.to_dict()
    written["search"]["simulated"] = {
        "throughput": simulation.throughput,
        "usd_per_million_samples": simulation.usd_per_million_samples if simulation.throughput > 0 else None,
        "simulations": objective.simulations,
        "jitter": conditions.jitter,
        "shared_gbps": conditions.shared_gbps,
        "failures_per_unit_hour": conditions.failures_per_unit_hour,
    }
    return Entry(method, Plan.from_dict(written), simulation, objective.simulations)
