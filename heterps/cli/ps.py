"""`heterps ps`: parameter servers by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heterps.errors import InvalidInput

app = typer.Typer(
    name="ps", help="Parameter servers: make keys, serve tables.", no_args_is_help=True, rich_markup_mode=None
)


@app.command()
def keygen(key_file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file for the keys.")]) -> None:
    """Make the keys of a job: servers and clients of the job all need this file."""
    from heterps.ps.keys import Keys

    Keys.generate().save(key_file)
    typer.echo(f"keys written to {key_file}")


@app.command()
def serve(
    bind: Annotated[
        list[str],
        typer.Option(metavar="ADDRESS", help="tcp://host:port or ipc:///directory/socket; several if repeated."),
    ],
    key_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The job's keys; needed for tcp.")] = None,
    save_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Restore from here at the start, save here on SIGTERM.")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads that work on tables, each table on one.")] = 2,
    table_factory: Annotated[str | None, typer.Option(hidden=True, help="module:function that makes a table.")] = None,
) -> None:
    """Serve tables until SIGTERM or Ctrl-C; then finish what was received, save and exit."""
    import logging
    import signal

    from heterps.ps.keys import Keys
    from heterps.ps.server import Server, native_table

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    make = native_table if table_factory is None else _named(table_factory)
    keys = None if key_file is None else Keys.load(key_file)
    server = Server(bind, keys, make_table=make, threads=threads, save_dir=save_dir)
    server.stop_at(signal.SIGTERM, signal.SIGINT)
    typer.echo(f"serving at {' '.join(server.addresses)}")
    server.serve()


def _named(name: str) -> Any:
    from importlib import import_module

    module, _, function = name.partition(":")
    try:
        return getattr(import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(f"table factory {name!r}: {error}") from None
