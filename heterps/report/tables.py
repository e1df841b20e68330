"""Plans, comparisons and frontiers as tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from heterps.plan import Plan
from heterps.schedule.alternatives import others
from heterps.schedule.comparison import Comparison
from heterps.schedule.objective import Provisioning
from heterps.schedule.planner import breakdown
from heterps.schedule.problem import Problem
from heterps.units import MILLION, format_rate, format_seconds, format_share, format_usd


def table(title: str, *columns: str, left: int = 1) -> Table:
    """A plain table; the first `left` columns are words, the others numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i < left else "right", overflow="fold", no_wrap=i == 0)
    return made


def plain_console() -> Console:
    """A console that prints names as files have them: brackets and colons in them are no markup."""
    return Console(markup=False, emoji=False)


def format_change(share: float, *, digits: int = 2) -> str:
    """A signed percentage without a negative zero: `+3.10%`, `-0.25%`, `+0.00%`."""
    return f"{round(share, digits + 2) + 0.0:+.{digits}%}"


def against(problem: Problem, plan: Plan, made: Provisioning) -> float:
    """The share by which units differ from a plan in what counts: in cost a sample, or in speed within a budget."""
    if problem.goal.fastest:
        return made.throughput / plan.predicted.throughput - 1
    return made.usd_per_sample * MILLION / plan.predicted.usd_per_million_samples - 1


def show_plan(problem: Problem, plan: Plan) -> None:
    """A table of stages, totals, the proved gap, and why this placement."""
    console = plain_console()
    console.print(stage_table(problem, plan))
    console.print(totals(plan))
    for line in why(problem, plan):
        console.print(line)


def stage_table(problem: Problem, plan: Plan) -> Table:
    """One row a stage and one for the server."""
    title = f"{plan.model}: {problem.layers} layers"
    if is_derived(problem):
        title += ", costs derived by a roofline, not measured"
    made = table(title, "stage", "layers", "type", "units", "time/sample", "binds", "idle", "$/h", left=3)
    got = breakdown(problem, plan)
    for i, stage in enumerate(got.stages):
        made.add_row(
            str(i), layer_names(problem, stage.first, stage.last), stage.type, str(stage.units),
            format_seconds(stage.seconds), stage.binds + (" *" if got.slowest == i else ""), format_share(stage.idle),
            format_usd(stage.usd_per_hour),
        )  # fmt: skip
    if got.server is not None and got.server.units:
        made.add_row(
            "", "parameter server", got.server.type, str(got.server.units), format_seconds(got.server.seconds),
            "server" + (" *" if got.slowest is None else ""), format_share(got.server.idle),
            format_usd(got.server.usd_per_hour),
        )  # fmt: skip
    return made


def totals(plan: Plan) -> str:
    """Throughput, money, and how far from the optimum the plan provably is."""
    predicted, search = plan.predicted, plan.search
    text = (
        f"{format_rate(predicted.throughput)} for {format_usd(predicted.usd_per_hour)} an hour: "
        f"{format_usd(predicted.usd_per_million_samples)} a million samples"
    )
    if plan.inputs.samples is not None:
        hours = plan.inputs.samples / predicted.throughput / 3600
        money = plan.inputs.samples / MILLION * predicted.usd_per_million_samples
        text += f"; {plan.inputs.samples:,.0f} samples in {hours:.3g} h for {format_usd(money)}"
    how = f"{plan.method}, {search.evaluations:,} scored, {search.seconds:.2g} s; * sets the pace"
    return f"{text}\n{proof(plan)} ({how})"


def proof(plan: Plan) -> str:
    """The proved gap in words."""
    bound = plan.search.lower_bound_usd_per_million_samples
    if plan.search.optimal:
        return "proved optimal: no plan is faster within the money" if plan.inputs.budget_usd else "proved optimal"
    if not bound:
        return "nothing proved"
    gap = plan.predicted.usd_per_million_samples / bound - 1
    return f"at most {format_share(gap)} above the optimum (proved: no plan costs less than {format_usd(bound)})"


def why(problem: Problem, plan: Plan) -> list[str]:
    """Why this placement: what single types, and the best one with one stretch of layers elsewhere, would cost."""
    lines = []
    asked = plan.inputs.min_throughput
    if asked > 0 and plan.predicted.throughput > 1.05 * asked:
        lines.append(
            f"Faster than asked ({format_rate(asked)}) because that is cheaper per sample: units are whole, "
            "and a half-idle one costs as much as a busy one."
        )
    told = []
    for other in others(problem, plan, most=1):
        if other.provisioning is None:
            told.append(f"{other.change}: cannot meet the goal")
        else:
            told.append(f"{other.change}: {format_change(against(problem, plan, other.provisioning), digits=1)}")
    if told:
        by = "speed within the budget" if problem.goal.fastest else "cost per sample"
        lines.append(f"Why this placement, by {by}: {'; '.join(told)}.")
    return lines


def show_comparison(problem: Problem, result: Comparison) -> None:
    """One row a method, best first among those with a plan."""
    console = plain_console()
    goal = problem.goal
    floor = f", at least {format_rate(goal.throughput_floor)}" if goal.throughput_floor else ""
    speed = "samples/s" if result.fastest else "$/M samples"
    made = table(
        f"{problem.profile.model}: {problem.layers} layers × {problem.types} types{floor}",
        "method", speed, "gap", "seconds", "scored", "units, stage by stage",
    )  # fmt: skip
    made.columns[-1].justify = "left"
    for row in sorted(result.rows, key=lambda row: row.gap if row.gap is not None else float("inf")):
        if row.plan is None:
            made.add_row(row.method, "–", "–", "–", "–", row.reason)
            continue
        assert row.gap is not None
        plan = row.plan
        predicted = plan.predicted
        made.add_row(
            row.method,
            f"{predicted.throughput:,.0f}" if result.fastest else f"{predicted.usd_per_million_samples:.5f}",
            "0" if row.gap <= 1e-6 else format_share(row.gap), f"{plan.search.seconds:.2f}",
            f"{plan.search.evaluations:,}", stages_line(plan),
        )  # fmt: skip
    console.print(made)
    if result.fastest:
        console.print(f"proved: no plan within the budget is faster than {format_rate(MILLION / result.lower_bound)}")
    else:
        console.print(f"proved: no plan costs less than ${result.lower_bound:.5f} a million samples")
    if is_derived(problem):
        console.print("layer costs are derived by a roofline, not measured; units after + serve tables")


def show_frontier(problem: Problem, plans: Sequence[Plan]) -> None:
    """One row a point, cheapest first."""
    made = table(
        f"{problem.profile.model}: the least cost for every throughput",
        "samples/s", "$/M samples", "$/h", "proved", "units, stage by stage", left=0,
    )  # fmt: skip
    made.columns[4].justify = "left"
    for plan in plans:
        bound = plan.search.lower_bound_usd_per_million_samples or 0.0
        gap = plan.predicted.usd_per_million_samples / bound - 1 if bound else 1.0
        made.add_row(
            f"{plan.predicted.throughput:,.0f}", f"{plan.predicted.usd_per_million_samples:.5f}",
            f"{plan.predicted.usd_per_hour:.2f}", "optimal" if plan.search.optimal else f"gap {format_share(gap)}",
            stages_line(plan),
        )  # fmt: skip
    plain_console().print(made)


def stages_line(plan: Plan) -> str:
    """A plan's units in one line, the server's last: `94 cpu → 2 v100 + 80 cpu`."""
    line = " → ".join(f"{stage.units} {stage.type}" for stage in plan.stages)
    server = plan.parameter_server
    return f"{line} + {server.units} {server.type}" if server is not None and server.units else line


def is_derived(problem: Problem) -> bool:
    """True if no cost of the profile was measured."""
    return {cost.source for layer in problem.profile.layers for cost in layer.costs.values()} == {"derived"}


def layer_names(problem: Problem, first: int, last: int) -> str:
    """`emb..fc3 (4)`, or the one layer's name."""
    layers = problem.profile.layers
    if first == last:
        return layers[first].name
    return f"{layers[first].name}..{layers[last].name} ({last - first + 1})"
