"""The charts of a report as PNG files, from the same data as its page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heterps.report.colours import light
from heterps.report.plots import ACCENT, QUIET, new_figure, save_figure
from heterps.units import format_rate, format_seconds, format_usd

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SECOND = "#c2410c"
INK = "#16202e"
SHADES = {"forward": 1.0, "pull": 1.0, "backward": 0.6, "push": 0.6, "update": 0.3}
"""How full the colour of a stage's type is, by what the stage does."""
MOST_NAMES = 40
"""Layers whose names can stand below a plan."""
_Data = dict[str, Any]


def plot_run(data: _Data, folder: Path) -> list[Path]:
    """Writes a PNG for each chart that the run has data for, and returns their paths."""
    written = []
    for name, (section, draw) in PLOTS.items():
        if data.get(section):
            path = folder / f"{name}.png"
            save_figure(draw(data), str(path))
            written.append(path)
    return written


def _colour(data: _Data, name: str) -> str:
    names = [kind["name"] for kind in data["types"]]
    return light(names.index(name)) if name in names else QUIET


def _quiet(axes: Axes, *, grid: str | None = None) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    if grid is not None:
        axes.grid(axis=grid, alpha=0.3)  # type: ignore[arg-type]
        axes.set_axisbelow(True)


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, loc="left")


def _plan(data: _Data, section: str) -> Figure:
    """Layers as blocks in the colour of their type, stages with their units and money."""
    plan = data[section]
    figure = new_figure(height=2.3)
    axes = figure.subplots()
    layers = plan["layers"]
    few = len(layers) <= MOST_NAMES
    for stage in plan["stages"]:
        count = stage["last"] - stage["first"] + 1
        axes.barh(0, count, left=stage["first"], height=0.8, color=_colour(data, stage["type"]), edgecolor="white",
                  linewidth=3 if few else 1)  # fmt: skip
        narrow, units, money = count < 0.1 * len(layers), _units(stage), format_usd(stage["usd_per_hour"])
        if count >= 0.04 * len(layers):
            label = units if narrow else f"{units}\n{money}/h"
            axes.text(stage["first"] + count / 2, 0, label, ha="center", va="center", color="white",
                      fontsize=7 if narrow else 9, rotation=90 if narrow else 0)  # fmt: skip
    for i, name in enumerate(layers if few else ()):
        axes.text(i + 0.5, -0.5, _short(name), rotation=45, ha="right", va="top", fontsize=7)
    axes.set_xlim(0, len(layers))
    axes.set_ylim(-1.1, 0.5)
    axes.set_axis_off()
    server = plan["server"]
    beside = f" + {server['units']} × {server['type']} as parameter server" if server else ""
    predicted = plan["predicted"]
    _title(axes, f"{_short(plan['model'])}: {format_rate(predicted['throughput'])}, "
                 f"{format_usd(predicted['usd_per_million_samples'])} a million samples{beside}")  # fmt: skip
    return figure


def _chain(data: _Data) -> Figure:
    layers = data["chain"]["layers"]
    used = [kind["name"] for kind in data["types"] if any(kind["name"] in layer["costs"] for layer in layers)]
    figure = new_figure(height=1.2 + 0.16 * len(layers) * len(used) + 0.1 * len(layers))
    axes = figure.subplots()
    height = 0.8 / len(used)
    for t, name in enumerate(used):
        at = [i + (t - (len(used) - 1) / 2) * height for i, layer in enumerate(layers) if name in layer["costs"]]
        costs = [layer["costs"][name] for layer in layers if name in layer["costs"]]
        widths = [max(cost["compute_s"], cost["sync_s"]) for cost in costs]
        axes.barh(at, widths, height=height * 0.9, color=_colour(data, name), label=name)
    axes.set_yticks(range(len(layers)), [_short(layer["name"]) for layer in layers], fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel(f"seconds for a batch of {data['chain']['batch_size']:,} on one unit")
    axes.legend(fontsize=8, frameon=False)
    _quiet(axes, grid="x")
    _title(axes, "each layer on each type")
    return figure


def _frontier(data: _Data) -> Figure:
    points, chosen = data["frontier"]["points"], data["frontier"]["chosen"]
    figure = new_figure(height=4.0)
    axes = figure.subplots()
    throughputs = [point["throughput"] for point in points]
    costs = [point["usd_per_million_samples"] for point in points]
    axes.step(throughputs, costs, where="pre", color=ACCENT)
    axes.plot(throughputs, costs, "o", color=ACCENT, markersize=4)
    if chosen:
        axes.plot(chosen["throughput"], chosen["usd_per_million_samples"], "o", markersize=11, markerfacecolor="white",
                  markeredgecolor=SECOND, markeredgewidth=2.5, label="the plan")  # fmt: skip
        axes.legend(fontsize=9, frameon=False)
    axes.set_xlabel("samples a second")
    axes.set_ylabel("US dollars a million samples")
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    _quiet(axes, grid="both")
    _title(axes, "the least cost for every throughput")
    return figure


def _methods(data: _Data) -> Figure:
    found = data["comparison"]
    bound = found["lower_bound_usd_per_million_samples"]
    key = "throughput" if bound is None else "usd_per_million_samples"
    rows = [row for row in reversed(found["methods"]) if row.get(key) is not None]
    figure = new_figure(height=1.2 + 0.35 * len(rows))
    axes = figure.subplots()
    colours = [ACCENT if row["gap"] <= 1e-6 else QUIET for row in rows]
    bars = axes.barh([row["method"] for row in rows], [row[key] for row in rows], color=colours)
    axes.bar_label(bars, [f" {row[key]:,.4g}" for row in rows], fontsize=8)
    if bound is not None:
        axes.axvline(bound, color=INK, linewidth=1, linestyle="--")
        _title(axes, "dashed: no plan costs less (proved)")
    axes.set_xlabel("samples a second" if bound is None else "US dollars a million samples")
    axes.margins(x=0.15)
    _quiet(axes)
    return figure


def _stages(data: _Data) -> Figure:
    stages = data["stages"]
    figure = new_figure(height=1.4 + 0.5 * len(stages))
    axes = figure.subplots()
    for i, stage in enumerate(stages):
        colour = _colour(data, stage["type"])
        for at, key, alpha in ((i - 0.2, "predicted_s", 0.4), (i + 0.2, "measured_s", 1.0)):
            if stage.get(key) is not None:
                bars = axes.barh(at, stage[key], height=0.36, color=colour, alpha=alpha)
                axes.bar_label(bars, [f" {key[:-2]} {format_seconds(stage[key])}"], fontsize=8)
    axes.set_yticks(range(len(stages)), [f"stage {i}\n{_units(stage)}" for i, stage in enumerate(stages)], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("seconds of work for one step")
    axes.margins(x=0.25)
    _quiet(axes)
    _title(axes, "predicted (faint) against measured")
    return figure


def _timeline(data: _Data) -> Figure:
    found, stages = data["timeline"], data["stages"] or []
    figure = new_figure(height=1.2 + 0.5 * len(found["stages"]))
    axes = figure.subplots()
    labels = []
    for row, number in enumerate(found["stages"]):
        stage = stages[number] if number < len(stages) else {"type": ""}
        labels.append(f"stage {number}\n{_units(stage)}")
        for name in dict.fromkeys(span["name"] for span in found["spans"]):
            spans = [span for span in found["spans"] if span["stage"] == number and span["name"] == name]
            pieces = [(1e3 * span["begin_s"], 1e3 * (span["end_s"] - span["begin_s"])) for span in spans]
            axes.broken_barh(pieces, (row - 0.35, 0.7), facecolor=_colour(data, stage["type"]),
                             alpha=SHADES.get(name, 0.2), edgecolor="white", linewidth=0.4)  # fmt: skip
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1e3 * found["seconds"])
    axes.set_xlabel("milliseconds")
    _quiet(axes)
    _title(axes, f"steps {found['first_step']} to {found['last_step']}: forward full, backward lighter, update faint")
    return figure


def _curves(data: _Data) -> Figure:
    curves = data["curves"]
    panels = [("loss", ("loss", "eval/loss")), ("AUC", ("auc", "eval/auc")), ("samples a second", ("throughput",))]
    panels = [(title, names) for title, names in panels if any(name in curves for name in names)]
    figure = new_figure(height=3.2)
    figure.set_figwidth(3.9 * len(panels))
    for axes, (title, names) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for name in names:
            points = [(step, value) for step, value in curves.get(name, ()) if value is not None]
            held_out = name.startswith("eval/")
            colour, marker, label = (SECOND, "o", "held-out") if held_out else (ACCENT, None, "training")
            xs, ys = [step for step, _ in points], [value for _, value in points]
            axes.plot(xs, ys, color=colour, marker=marker, markersize=3, label=label)
        if names[0] == "throughput":
            axes.set_ylim(bottom=0)
        else:
            axes.legend(fontsize=8, frameon=False)
        axes.set_xlabel("step")
        _quiet(axes, grid="y")
        _title(axes, title)
    return figure


def _store(data: _Data) -> Figure:
    figure = new_figure(height=3.2)
    axes = figure.subplots()
    for i, table in enumerate(data["store"]):
        points = table["curves"].get("rows", [])
        axes.plot(
            [step for step, _ in points], [rows for _, rows in points], color=light(i), label=_short(table["name"])
        )
    axes.set_xlabel("step")
    axes.set_ylabel("rows")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8, frameon=False)
    _quiet(axes, grid="y")
    _title(axes, "rows of the sparse tables")
    return figure


def _units(stage: _Data) -> str:
    return f"{stage['units']} × {stage['type']}" if stage.get("units") is not None else _short(stage["type"])


def _short(text: str) -> str:
    """A name that is safe to draw: matplotlib takes dollar signs for formulas."""
    text = text if len(text) <= 24 else text[:23] + "…"
    return text.replace("$", r"\$")


PLOTS: dict[str, tuple[str, Callable[[_Data], Figure]]] = {
    "placement": ("plan", lambda data: _plan(data, "plan")),
    "rent": ("rent", lambda data: _plan(data, "rent")),
    "chain": ("chain", _chain),
    "frontier": ("frontier", _frontier),
    "methods": ("comparison", _methods),
    "stages": ("stages", _stages),
    "timeline": ("timeline", _timeline),
    "curves": ("curves", _curves),
    "store": ("store", _store),
}
"""File name -> the section it shows, and how."""
