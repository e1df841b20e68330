"""`heterps watch`: a run's report while it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heterps.cli.report import candidate
from heterps.cli.runs import RunArgument, Runs


def watch(
    run: RunArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where to serve; 0 for any port that is free.")] = 8383,
    host: Annotated[str, typer.Option(help="The address to serve on; by default for this machine only.")] = "127.0.0.1",
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = False,
    runs: Runs = "runs",
) -> None:
    """Serve the report of a run as it trains, on this machine; a run that is not there yet is waited for."""
    from heterps.report.serve import Follower, ReportServer

    server = ReportServer(Follower(lambda: candidate(run, Path(runs))), host=host, port=port)
    with server:
        name = "the newest run" if run == "latest" else run
        typer.echo(f"watching {name} at {server.address} (Ctrl-C ends it)")
        if open_page:
            import webbrowser

            webbrowser.open(server.address)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            typer.echo("")
