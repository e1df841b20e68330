"""What a run gives, in memory and as `result.json`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from heterps.plan import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class StageResult:
    """One stage of a run."""

    type: str
    units: int
    measured_s: float
    """Seconds of work for one step."""
    busy: float
    """Share of the run's time in which it worked."""
    predicted_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a run gives."""

    steps: int
    """In all, those before a resume included."""
    samples: int
    losses: list[float]
    """Of the steps of this call, in order."""
    auc: float | None
    """On held-out data if there is some, else over the run's own scores; None for a chain without a score."""
    eval_loss: float | None
    evaluations: list[dict[str, float]]
    """step, loss and auc of each evaluation."""
    throughput: float
    """Samples a second, evaluations and checkpoints not counted."""
    seconds: float
    stages: list[StageResult]
    stopped: str
    """done, early (no more gain), or interrupted."""
    skipped_rows: int = 0
    """Malformed rows of the data that were passed over."""
    plan: Plan | None = None

    @property
    def loss(self) -> float | None:
        """Of the last step."""
        return self.losses[-1] if self.losses else None

    def to_dict(self) -> dict[str, Any]:
        """As in `result.json` (`heterps.result/1`)."""
        predicted = self.plan.predicted if self.plan is not None else None
        usd_per_hour = predicted.usd_per_hour if predicted is not None else None
        cost = usd_per_hour / 3600 / self.throughput * 1e6 if usd_per_hour and self.throughput > 0 else None
        return {
            "format": "heterps.result/1", "steps": self.steps, "samples": self.samples, "loss": self.loss,
            "auc": _finite(self.auc), "eval_loss": _finite(self.eval_loss), "stopped": self.stopped,
            "seconds": self.seconds, "skipped_rows": self.skipped_rows,
            "predicted": {
                "throughput": predicted.throughput if predicted else None,
                "usd_per_million_samples": predicted.usd_per_million_samples if predicted else None,
            },
            "measured": {"throughput": self.throughput, "usd_per_million_samples": cost},
            "stages": [
                {"type": stage.type, "units": stage.units, "predicted_s": stage.predicted_s,
                 "measured_s": stage.measured_s, "busy": stage.busy}
                for stage in self.stages
            ],
        }  # fmt: skip

    def save(self, path: str | PathLike[str]) -> None:
        """Writes `result.json`."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n")


def _finite(value: float | None) -> float | None:
    """JSON has no NaN, which is the AUC of samples of one class."""
    return value if value is not None and math.isfinite(value) else None
