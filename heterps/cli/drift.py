"""A run that leaves its prediction: said, and another plan proposed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heterps.catalog import Catalog
    from heterps.job import Job
    from heterps.loop.planning import Planned
    from heterps.profile.measurement import Measurement
    from heterps.telemetry import Recorder


def watch_drift(job: Job, measured: Measurement, planned: Planned, catalog: Catalog, folder: Path) -> Any:
    """Tells when the run leaves its prediction, and proposes another plan; planning goes on beside the training."""
    from heterps.loop.comparing import Drift

    drift: list[Drift] = []

    def on_log(recorder: Recorder, samples: int, seconds: float) -> None:
        def tell(throughput: float) -> None:
            steps = max(1.0, samples / planned.problem.profile.batch_size)
            took = [recorder.busy_s(number) / steps for number in range(len(planned.plan.stages))]
            recorder.event("drift", predicted=planned.plan.predicted.throughput, measured=throughput)
            threading.Thread(
                target=_propose, args=(job, measured, planned, catalog, folder, took, throughput), name="propose",
                daemon=True,
            ).start()  # fmt: skip

        if not drift:
            drift.append(Drift(planned.plan.predicted.throughput, job.plan.tolerance, tell))
        drift[0](samples, seconds)

    return on_log


def _propose(
    job: Job, measured: Measurement, planned: Planned, catalog: Catalog, folder: Path, took: list[float], now: float
) -> None:
    from heterps.loop.comparing import calibrated
    from heterps.loop.planning import choose
    from heterps.report.tables import stages_line

    was = planned.plan.predicted.throughput
    corrected = calibrated(measured, planned, measured_s=took, throughput=now, catalog=catalog)
    better = choose(job.with_values(["plan={}"], source="job"), corrected, catalog=catalog).here.plan
    path = folder / "proposed-plan.json"
    better.save(path)
    what = (
        "the plan stays the best one"
        if better.stages == planned.plan.stages
        else f"a better one now is {stages_line(better)} ({better.predicted.throughput:,.0f}/s), in {path}"
    )
    sys.stderr.write(
        f"\nheterps: {now:,.0f} samples/s is {now / was - 1:+.0%} off the predicted {was:,.0f}/s; {what}\n"
    )
