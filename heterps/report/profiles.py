"""Profiles as tables, and predictions beside what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from heterps.plan import Plan, Profile
from heterps.report.tables import table
from heterps.units import MILLION, format_rate, format_seconds, format_usd


def profile_table(profile: Profile, types: Sequence[str]) -> Table:
    """Seconds of a batch on one unit of each type, layer by layer; derived ones are marked."""
    derived = any(cost.source == "derived" for layer in profile.layers for cost in layer.costs.values())
    title = f"{profile.model}: a batch of {profile.batch_size:,} on one unit" + (" (~ derived)" if derived else "")
    made = table(title, "layer", *types, "state")
    for column in made.columns:
        column.no_wrap = True
    for layer in profile.layers:
        cells = []
        for name in types:
            cost = layer.costs.get(name)
            mark = "~" if cost is not None and cost.source == "derived" else ""
            cells.append("–" if cost is None else f"{mark}{format_seconds(cost.compute_s)}")
        made.add_row(layer.name, *cells, _size(layer.state_bytes))
    sums = []
    for name in types:
        costs = [layer.costs[name].compute_s for layer in profile.layers if name in layer.costs]
        sums.append(format_seconds(sum(costs)) if len(costs) == len(profile.layers) else "–")
    made.add_row("all", *sums, _size(sum(layer.state_bytes for layer in profile.layers)), style="bold")
    return made


def outcome_table(
    plan: Plan, *, predicted_s: Sequence[float], measured_s: Sequence[float], busy: Sequence[float]
) -> Table:
    """Each stage's seconds for a step, predicted and measured."""
    made = table("predicted and measured, a step", "stage", "type", "units", "predicted", "measured", "off", "busy",
                 left=2)  # fmt: skip
    for number, (stage, was, took, share) in enumerate(zip(plan.stages, predicted_s, measured_s, busy, strict=True)):
        off = f"{took / was - 1:+.0%}" if was > 0 else "–"
        made.add_row(str(number), stage.type, str(stage.units), format_seconds(was), format_seconds(took), off,
                     f"{share:.0%}")  # fmt: skip
    return made


def outcome_line(plan: Plan, throughput: float) -> str:
    """Throughput and money, predicted and measured."""
    was = plan.predicted
    cost = was.usd_per_hour / 3600 / throughput * MILLION if throughput > 0 else float("inf")
    return (
        f"throughput: predicted {format_rate(was.throughput)}, measured {format_rate(throughput)} "
        f"({throughput / was.throughput - 1:+.1%}); a million samples: predicted "
        f"{format_usd(was.usd_per_million_samples)}, measured {format_usd(cost)}"
    )


def _size(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"
