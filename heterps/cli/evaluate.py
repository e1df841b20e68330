"""`heterps evaluate`: loss and AUC of a run's newest checkpoint."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heterps.cli.options import Json
from heterps.cli.runs import RunArgument, Runs, find
from heterps.errors import InvalidInput

if TYPE_CHECKING:
    from heterps.data import Source
    from heterps.job import Job


def evaluate(
    run: RunArgument,
    data: Annotated[
        str | None,
        typer.Option(metavar="DATA", help="Other data: a job file, or {source: …, path: …} as in one."),
    ] = None,
    runs: Runs = "runs",
    json: Json = False,
) -> None:
    """Evaluate the newest checkpoint of a run on the rows that it held out, or on other data."""
    from heterps.job import Job, read_data
    from heterps.runtime import evaluate as run_evaluation
    from heterps.runtime.restore import restore

    found = find(run, Path(runs))
    given = None if data is None else read_data(data)
    job = found.job or (given if isinstance(given, Job) else None)
    if job is None:
        raise InvalidInput(f"{found.checkpoint} has no job.yaml above it; name the job with --data job.yaml")
    source = _held_out(given if given is not None else job)
    chain = job.build(source)
    state = restore(chain, found.checkpoint, seed=job.train.seed)
    result = run_evaluation(chain, source, step=state.step, batch_size=job.train.batch_size, batches=job.eval.batches)
    if json:
        typer.echo(json_format.dumps({**result.to_dict(), "checkpoint": str(found.checkpoint)}, indent=2))
        return
    auc = "" if result.auc is None else f" · AUC {result.auc:.4f}"
    typer.echo(f"step {result.step:,} · {result.samples:,} samples · loss {result.loss:.4f}{auc}")


def _held_out(given: Job | Mapping[str, Any]) -> Source:
    """What a job holds out, or all of data that is given by itself."""
    from heterps.data import make_source

    if isinstance(given, Mapping):
        return make_source(given)
    _, held_out = given.sources()
    if held_out is None:
        raise InvalidInput("the job holds nothing out (eval.fraction is 0); name data to evaluate on with --data")
    return held_out
