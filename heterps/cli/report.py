"""`heterps report`: what a run gave, as one page."""

from __future__ import annotations

import json as jsons
import sys
from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.runs import RunArgument, Runs, writing
from heterps.errors import InvalidInput


def report(
    run: RunArgument,
    out: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="The page; by default report.html in the run's directory.")
    ] = None,
    png: Annotated[str | None, typer.Option(metavar="DIR", help="Also write the charts as PNG files.")] = None,
    json: Annotated[str | None, typer.Option(metavar="FILE", help="Also write the data; - prints it alone.")] = None,
    runs: Runs = "runs",
) -> None:
    """Write what a run gave as one HTML file that needs no network."""
    directory = find_run(run, Path(runs))
    from heterps.report.data import read_run
    from heterps.report.page import render_page

    data = read_run(directory)
    text = jsons.dumps(data, allow_nan=False, indent=1) + "\n"
    if json == "-":
        typer.echo(text, nl=False)
    elif json is not None:
        _write(Path(json), text)
    if png is not None:
        from heterps.report.run_plots import plot_run

        folder = Path(png)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        written = plot_run(data, folder)
        if json != "-":
            typer.echo(f"{len(written)} plots written to {folder}")
    page = Path(out) if out is not None else directory / "report.html"
    if json != "-" or out is not None:
        _write(page, render_page(data))
    if json != "-":
        sys.stderr.write(f"heterps: {data['verdict']['text']}\n")
        typer.echo(str(page))


def find_run(text: str, root: Path) -> Path:
    """The directory of a run: itself, or its name under `root`, or that of one of its checkpoints."""
    from heterps.report.data import TELEMETRY

    path = candidate(text, root)
    for each in (path, *path.parents[:2]):
        if (each / TELEMETRY).is_file():
            return each
    if not path.is_dir():
        raise InvalidInput(f"no run {text!r}: neither that directory is there nor {root / text}")
    raise InvalidInput(f"{path}: no {TELEMETRY} there, so it is no run; heterps train makes runs")


def candidate(text: str, root: Path) -> Path:
    """Where a run is, or will be: the directory that is named, else the one of that name under `root`."""
    given = Path(text)
    named = given.is_dir() or (len(given.parts) > 1 and not (root / text).is_dir())
    return (given if named else root / text).resolve()


def _write(path: Path, text: str) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
