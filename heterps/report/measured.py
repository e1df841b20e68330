"""What a report says of what was measured: figures, stages, curves, tables."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from heterps.report.files import number, part
from heterps.report.telemetry import TelemetryReader
from heterps.units import MILLION, SECONDS_PER_HOUR

CURVES = ("loss", "auc", "eval/loss", "eval/auc")


def measured(
    telemetry: TelemetryReader, result: dict[str, Any] | None, job: dict[str, Any] | None, plan: dict[str, Any] | None
) -> dict[str, Any]:
    """What the result says, and before there is one, what telemetry tells."""
    batch = number(part(job, "train").get("batch_size"))
    if batch is None and result is not None and result["steps"] and result["samples"]:
        batch = result["samples"] / result["steps"]
    found: dict[str, Any] = {"batch_size": batch, "steps": telemetry.session.steps}
    if result is not None:
        found |= {key: result[key] for key in ("steps", "samples", "seconds", "loss", "auc", "eval_loss")}
        found |= {**result["measured"], "auc_of": "held-out" if result["eval_loss"] is not None else "training"}
        return found
    speed = _newest_speed(telemetry)
    throughput = speed * batch if speed and batch else None
    cost = None
    if plan is not None and throughput:
        cost = plan["predicted"]["usd_per_hour"] / SECONDS_PER_HOUR / throughput * MILLION
    held_out = "eval/auc" in telemetry.curves
    return found | {
        "throughput": throughput, "usd_per_million_samples": cost, "loss": _last(telemetry, "loss"),
        "auc": _last(telemetry, "eval/auc" if held_out else "auc"), "auc_of": "held-out" if held_out else "training",
        "eval_loss": _last(telemetry, "eval/loss"), "seconds": telemetry.session.last_t, "samples": None,
    }  # fmt: skip


def _newest_speed(telemetry: TelemetryReader) -> float | None:
    """Steps a second over the last quarter of the session."""
    points = [(float(t or 0), float(done or 0)) for t, done in telemetry.session.done.points()]
    if len(points) < 2:
        return None
    (t0, done0), (t1, done1) = points[-max(2, len(points) // 4)], points[-1]
    return (done1 - done0) / (t1 - t0) if t1 > t0 else None


def _last(telemetry: TelemetryReader, name: str) -> float | None:
    curve = telemetry.curves.get(name)
    value = curve.last[1] if curve is not None and curve.last is not None else None
    return value if value is not None and math.isfinite(value) else None


def stages(
    telemetry: TelemetryReader, result: dict[str, Any] | None, plan: dict[str, Any] | None, figures: dict[str, Any]
) -> list[dict[str, Any]] | None:
    """Each stage's predicted and measured seconds a step. Without a result, the measured ones are telemetry's."""
    planned = plan["stages"] if plan is not None else []
    work, steps, elapsed = telemetry.work_s(), telemetry.session.steps, _elapsed(telemetry)
    found = [dict(stage) for stage in result["stages"]] if result is not None else []
    if not found:
        found = [
            {
                "type": planned[i]["type"] if i < len(planned) else "here",
                "units": planned[i]["units"] if i < len(planned) else None,
                "measured_s": seconds / max(1, steps), "busy": min(1.0, seconds / elapsed) if elapsed > 0 else None,
            }
            for i, seconds in work.items()
        ]  # fmt: skip
    for i, stage in enumerate(found):
        per_sample = planned[i].get("seconds") if len(planned) == len(found) else None
        if stage.get("predicted_s") is None:
            batch = figures["batch_size"]
            stage["predicted_s"] = per_sample * batch if per_sample is not None and batch else None
    return found or None


def _elapsed(telemetry: TelemetryReader) -> float:
    """Seconds between the first and the last step."""
    points = telemetry.session.done.points()
    return float(points[-1][0] or 0) - float(points[0][0] or 0) if len(points) > 1 else 0.0


def curves(telemetry: TelemetryReader, batch: float | None) -> dict[str, Any] | None:
    """Loss, AUC and throughput over steps."""
    found: dict[str, Any] = {name: telemetry.curves[name].points() for name in CURVES if name in telemetry.curves}
    done = [(float(t or 0), float(steps or 0)) for t, steps in telemetry.session.done.points()]
    if batch and len(done) > 2:
        found["throughput"] = [
            [done1, (done1 - done0) * batch / (t1 - t0)]
            for (t0, done0), (t1, done1) in pairwise(done) if t1 > t0
        ]  # fmt: skip
    return found or None


def store(telemetry: TelemetryReader) -> list[dict[str, Any]] | None:
    """Tables with their newest figures, and how rows and bytes grew."""
    tables: dict[str, dict[str, Any]] = {}
    for name, curve in telemetry.curves.items():
        if name.startswith("table/") and name.count("/") >= 2 and curve.last is not None:
            table, _, figure = name.removeprefix("table/").rpartition("/")
            entry = tables.setdefault(table, {"name": table, "curves": {}})
            entry[figure] = curve.last[1]
            if figure in ("rows", "bytes"):
                entry["curves"][figure] = curve.points()
    return list(tables.values()) or None
