"""`heterps export`: a trained model as files that score without heterps' runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.runs import RunArgument, Runs, find
from heterps.errors import InvalidInput


def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new directory, or an earlier export to replace.")],
    runs: Runs = "runs",
) -> None:
    """Export the newest checkpoint of a run: weights, rows (also as Parquet), and how to build the model."""
    from heterps.models.named import is_function
    from heterps.runtime.export import export as write
    from heterps.runtime.restore import restore

    found = find(run, Path(runs))
    if found.job is None:
        raise InvalidInput(f"{found.checkpoint} has no job.yaml above it, which says what model it is of")
    job = found.job
    source, _ = job.sources()
    chain = job.build(source)
    state = restore(chain, found.checkpoint, seed=job.train.seed)
    model = {"name": job.model.name, "args": dict(job.model.args), "seed": job.train.seed}
    write(chain, out, model=model, example=job.example(source) if is_function(job.model.name) else None)
    rows = sum(table.stats().rows for table in chain.tables.values())
    typer.echo(f"step {state.step:,}: {rows:,} rows of {len(chain.tables)} tables and the dense weights are in {out}")
