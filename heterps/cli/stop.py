"""`heterps stop`: ends a job that runs on a Ray cluster."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from heterps.cli.status import ClusterAddress
from heterps.errors import HeterPSError

LOOK_S = 0.5
"""Between two looks whether it has ended."""


def stop(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job's name; heterps status shows them.")],
    address: ClusterAddress = None,
    within: Annotated[float, typer.Option(metavar="MINUTES", min=0, help="How long to wait for its end.")] = 10.0,
) -> None:
    """Have a job save a checkpoint and end, as Ctrl-C does where it was started."""
    from heterps.runtime.cluster import registry
    from heterps.runtime.cluster.engine import dismiss

    with registry.connected(address):
        actor = registry.job(job)
        before = registry.ask(actor, "status")
        registry.ask(actor, "stop")
        end = time.monotonic() + 60 * within
        last = before
        while job in registry.jobs() and not registry.ask(actor, "over"):
            if time.monotonic() > end:
                raise HeterPSError(f"job {job!r} was asked to stop, and has not ended after {within:g} minutes")
            last = registry.ask(actor, "status") or last
            time.sleep(LOOK_S)
        last = registry.ask(actor, "status") or last
        if before is not None and not before["followed"]:
            dismiss(actor)  # nobody waits for its result
    saved = f", saved at step {last['step']:,}" if last is not None else ""
    typer.echo(f"{job}: stopped{saved}")
