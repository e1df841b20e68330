"""Plots of comparisons and frontiers, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from heterps.errors import HeterPSError, InvalidInput
from heterps.plan import Plan
from heterps.report.colours import PALETTE, light
from heterps.schedule.comparison import Comparison
from heterps.schedule.simulation import Point

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCENT, QUIET = "#2563eb", "#94a3b8"
HALF = 0.5
"""Efficiency below which units no longer pay: twice the money for each sample."""


def plot_comparison(result: Comparison, path: str) -> None:
    """Bars of each method's cost per million samples, with the proved bound as a line."""
    rows = sorted((row for row in result.rows if row.plan), key=lambda row: row.gap or 0.0, reverse=True)
    figure = new_figure(height=1.2 + 0.35 * len(rows))
    axes = figure.subplots()
    costs = [row.plan.predicted.usd_per_million_samples for row in rows if row.plan]
    bars = axes.barh(
        [row.method for row in rows], costs, color=[ACCENT if row.method == "exact" else QUIET for row in rows]
    )
    axes.bar_label(bars, [f" {cost:.5f}" for cost in costs], fontsize=8)
    if not result.fastest:
        axes.axvline(result.lower_bound, color="black", linewidth=1, linestyle="--")
        axes.set_title("dashed: no plan costs less (proved)", fontsize=9, loc="left")
    axes.set_xlabel("US dollars a million samples")
    axes.margins(x=0.15)
    save_figure(figure, path)


def plot_frontier(plans: Sequence[Plan], path: str) -> None:
    """Cost per million samples over throughput, as the staircase it is."""
    figure = new_figure(height=4.0)
    axes = figure.subplots()
    throughputs = [plan.predicted.throughput for plan in plans]
    costs = [plan.predicted.usd_per_million_samples for plan in plans]
    axes.step(throughputs, costs, where="pre", color=ACCENT)
    axes.plot(throughputs, costs, "o", color=ACCENT, markersize=4)
    axes.set_xlabel("samples a second")
    axes.set_ylabel("US dollars a million samples")
    axes.set_title("the least cost for every throughput (proved)", fontsize=9, loc="left")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def plot_scale(curves: Mapping[str, Sequence[Point]], path: str) -> None:
    """Efficiency over units; where a curve falls below a half, what limits it there."""
    figure = new_figure(height=4.2 + 0.1 * len(curves))
    axes = figure.subplots()
    for number, (name, points) in enumerate(curves.items()):
        style = "o-" if number < len(PALETTE) else "s--"  # colours come again after the last
        units, left = [point.units for point in points], [point.efficiency for point in points]
        axes.plot(units, left, style, markersize=3, linewidth=1.2, color=light(number), label=name)
        broken = next((point for point in points if point.efficiency < HALF), None)
        if broken is not None:
            axes.annotate(
                broken.limit, (broken.units, broken.efficiency), xytext=(-4, -3), textcoords="offset points",
                fontsize=7, color=light(number), ha="right", va="top",
            )  # fmt: skip
    axes.axhline(HALF, color="black", linewidth=0.8, linestyle=":")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("units")
    axes.set_ylabel("efficiency: what is left of each unit", fontsize=9)
    axes.grid(alpha=0.3)
    figure.legend(fontsize=7, loc="outside lower center", ncols=2)
    save_figure(figure, path)


def new_figure(*, height: float) -> Figure:
    """An empty figure of the usual width; `HeterPSError` without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise HeterPSError("plots need matplotlib; install it with: pip install 'heterps[plot]'") from None
    return Figure(figsize=(7.5, height), layout="constrained")


def save_figure(figure: Figure, path: str) -> None:
    """Writes a figure; `InvalidInput` if the path does not take it."""
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"{path}: the plot cannot be written ({error}); choose another path ending in .png"
        ) from None
