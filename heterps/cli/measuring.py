"""Measuring with a progress bar, for the commands that need it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from heterps.job import Job
    from heterps.profile.measure import OnProgress
    from heterps.profile.measurement import Measurement

BUSY_SHARE = 0.15
"""Of all cores, used by other programs: more than this is worth a word (measured: predictions are then 20% off)."""


def measured_job(job: Job, *, fresh: bool, quiet: bool) -> Measurement:
    """The job's measurement, with a bar while it is made, and a line that says where it comes from."""
    import time

    from heterps.loop.measuring import measure_job

    began = time.perf_counter()
    with _bar(quiet=quiet) as report, warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always", UserWarning)
        measured, kept = measure_job(job, fresh=fresh, on_progress=report)
    for text in dict.fromkeys(str(note.message) for note in noted if note.category is UserWarning):
        sys.stderr.write(f"heterps: {text}\n")
    if not quiet:
        how = "from the cache (--fresh measures again)" if kept else f"in {time.perf_counter() - began:.0f} s"
        learned = ", calibrated by a run" if measured.calibrated else ""
        sys.stderr.write(f"heterps: measured on {measured.hardware.identity}, {how}{learned}\n")
        if measured.others_share > BUSY_SHARE and not measured.calibrated:
            sys.stderr.write(
                f"heterps: other programs used {measured.others_share:.0%} of the cores meanwhile, so times are too "
                "long; measure again (--fresh) when they are done\n"
            )
    return measured


@contextmanager
def _bar(*, quiet: bool) -> Iterator[OnProgress]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("measuring {task.description}"), BarColumn(), TimeElapsedColumn())
    silent = quiet or not sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=silent) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)
