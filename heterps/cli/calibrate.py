"""`heterps calibrate`: lets the next prediction learn from a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli.report import find_run
from heterps.cli.runs import RunArgument, Runs
from heterps.errors import InvalidInput

if TYPE_CHECKING:
    from heterps.loop.planning import Planned

MEASUREMENT = "measurement.json"


def calibrate(
    run: RunArgument = "latest",
    runs: Runs = "runs",
    out: Annotated[
        str | None, typer.Option(metavar="profile.json", help="Also write the corrected profile to a file.")
    ] = None,
) -> None:
    """Feed a run's measured stage times back, so that the next prediction is better."""
    from heterps import catalog as catalogs
    from heterps.loop.comparing import calibrated, predicted
    from heterps.profile.assemble import assemble
    from heterps.profile.cache import load_measurement, save_measurement
    from heterps.profile.measurement import Measurement

    folder = find_run(run, Path(runs))
    planned, result = load_planned(folder), read_result(folder)
    catalog = catalogs.load()
    measured = Measurement.load(folder / MEASUREMENT)
    took = [stage["measured_s"] for stage in result["stages"]]
    throughput = result["measured"]["throughput"]
    better = calibrated(measured, planned, measured_s=took, throughput=throughput, catalog=catalog)
    held = load_measurement(measured.key)
    save_measurement(better)
    before, after = planned.plan.predicted.throughput, predicted(better, planned, catalog).throughput
    typer.echo(
        f"{folder.name}: measured {throughput:,.0f}/s; predicted {before:,.0f}/s before, {after:,.0f}/s from now on"
        + ("" if held is not None else " (for this model, data and machine)")
    )
    if out is not None:
        assemble(better, planned.problem.cluster, catalog=catalog).save(out)
        typer.echo(f"written to {out}")


def load_planned(folder: Path) -> Planned:
    """The plan of a run, with what it was made from."""
    from heterps.loop.planning import Planned
    from heterps.plan import Cluster, Plan, Profile
    from heterps.schedule.planner import goal_of
    from heterps.schedule.problem import Problem

    for name in ("plan.json", "profile.json", "cluster.yaml", MEASUREMENT):
        if not (folder / name).is_file():
            raise InvalidInput(f"{folder}: there is no {name}; only runs of `heterps run` can be learned from")
    plan = Plan.load(folder / "plan.json")
    problem = Problem(Profile.load(folder / "profile.json"), Cluster.load(folder / "cluster.yaml"), goal_of(plan))
    return Planned(problem, plan)


def read_result(folder: Path) -> dict[str, Any]:
    """What the run gave."""
    import json

    path = folder / "result.json"
    if not path.is_file():
        raise InvalidInput(f"{folder}: there is no result.json yet; let the run end first")
    try:
        result: dict[str, Any] = json.loads(path.read_text())
        return {"stages": result["stages"], "measured": result["measured"]}
    except (ValueError, KeyError, TypeError):
        raise InvalidInput(f"{path}: is damaged; run the job again") from None
