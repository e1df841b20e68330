"""What a run gave, for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console

from heterps.report.tables import table
from heterps.units import format_seconds, format_share

if TYPE_CHECKING:
    from heterps.cli.runs import Run
    from heterps.runtime import Result


def show_result(run: Run, result: Result) -> None:
    """Stages, totals and where the files are."""
    console = Console(markup=False, emoji=False)  # names come from files
    files = sorted(path.name for path in run.path.iterdir() if not path.name.startswith("."))
    where = f"in {run.path}: {', '.join(files)}"
    if not result.losses:
        what = "no step was done after" if result.stopped == "interrupted" else "nothing is left to do after"
        console.print(f"{run.name}: {what} {result.steps:,} steps", highlight=False, markup=False)
        console.print(where, highlight=False, markup=False, soft_wrap=True)
        return
    stages = table(f"{run.name}: {result.steps:,} steps, {result.samples:,} samples", "stage", "type", "units",
                   "time/step", "busy", left=2)  # fmt: skip
    for number, stage in enumerate(result.stages):
        stages.add_row(
            str(number), stage.type, str(stage.units), format_seconds(stage.measured_s), format_share(stage.busy)
        )
    console.print(stages)
    console.print(totals(result), highlight=False)
    console.print(where, highlight=False, markup=False, soft_wrap=True)


def totals(result: Result) -> str:
    """Speed, loss and AUC in a line."""
    parts = [f"{result.throughput:,.0f} samples/s", f"loss {result.losses[-1]:.4f}"]
    where = ""
    if result.eval_loss is not None:
        parts.append(f"held-out loss {result.eval_loss:.4f}")
        where = "held-out "
    if result.auc is not None:
        parts.append(f"{where}AUC {result.auc:.4f}")
    if result.skipped_rows:
        parts.append(f"{result.skipped_rows:,} malformed rows skipped")
    if result.stopped == "early":
        parts.append("stopped early: no more gain")
    return " · ".join(parts)
