"""Where a run stands, as plain data: for `heterps status`, and for the metrics that others read."""

from __future__ import annotations

import math
import time
from typing import Any

from heterps.runtime.cluster.coordinator import Coordinator
from heterps.runtime.cluster.layout import StageLayout


def status_of(coordinator: Coordinator, *, metrics: str | None = None) -> dict[str, Any]:
    """A coordinator's run as JSON can hold it; `metrics` is where its metrics are served."""
    outcome, tally, options = coordinator.outcome, coordinator.tally, coordinator.options
    layout, nodes = coordinator.work.layout, dict(coordinator.nodes)
    saved = coordinator.saved
    return {
        "job": options.name,
        "state": "stopping" if coordinator.stopping and coordinator.state != "over" else coordinator.state,
        "step": outcome.step,
        "steps": coordinator.work.settings.steps,
        "samples": outcome.samples,
        "samples_per_s": tally.samples_per_s,
        "loss": outcome.losses[-1] if outcome.losses else None,
        "auc": None if outcome.auc is None or math.isnan(outcome.auc) else outcome.auc,
        "stages": [_stage(coordinator, stage) for stage in layout.stages],
        "shards": [nodes[name].name if (name := f"shard {n}") in nodes else None for n in range(layout.shards)],
        "attempts": outcome.attempts,
        "restarts": dict(outcome.restarts),
        "last_failure": outcome.failures[-1] if outcome.failures else None,
        "checkpoint": (
            None if saved is None else {"step": saved[0], "age_s": time.time() - saved[1], "took_s": saved[2]}
        ),
        "tables": {name: dict(figures) for name, figures in coordinator.tables.items()},
        "directory": coordinator.directory,
        "followed": coordinator.journal.followed,
        "metrics": metrics,
    }


def _stage(coordinator: Coordinator, stage: StageLayout) -> dict[str, Any]:
    replicas = []
    for seat in stage.seats():
        node = coordinator.nodes.get(str(seat))
        replicas.append({
            "machine": None if node is None else node.name,
            "busy": coordinator.tally.busy.get(seat),
            "slow": coordinator.room.slow.get(str(seat)),
        })  # fmt: skip
    return {"type": stage.type, "units": stage.units, "replicas": replicas}
