"""The `heterps` command: registers the commands, and turns errors into one message and an exit code."""

from __future__ import annotations

import sys

import typer

from heterps.cli import (
    calibrate,
    catalog,
    compare,
    evaluate,
    explain,
    export,
    init,
    pareto,
    plan,
    pretrain,
    profile,
    ps,
    report,
    run,
    simulate,
    status,
    stop,
    train,
    watch,
)
from heterps.errors import HeterPSError

app = typer.Typer(
    name="heterps",
    help="Train sparse-feature deep networks on the cheapest mix of hardware that meets a goal, with a proof.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (init, run, profile, plan, compare, pareto, explain, simulate, catalog, train, evaluate, export, report,
               watch, status, stop, calibrate, pretrain):  # fmt: skip
    app.command()(getattr(module, module.__name__.rpartition(".")[2]))
app.add_typer(ps.app)


def main() -> None:
    """Runs the command line. Exit codes: 0 done, 1 failed, 2 bad input, 3 an unreachable goal, 130 interrupted."""
    try:
        app()
    except HeterPSError as error:
        sys.stderr.write(f"heterps: {error}\n")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.stderr.write("heterps: interrupted\n")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)


if __name__ == "__main__":
    main()
