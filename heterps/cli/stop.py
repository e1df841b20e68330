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
        end = time.monotonic() + 60 * within
        last = registry.ask(actor, "status")
        while job in registry.jobs() and not registry.ask(actor, "over"):
            if last is None or last["state"] != "stopping":  # also if it was asked, died, and is another one now
                registry.ask(actor, "stop")
            if time.monotonic() > end:
                raise HeterPSError(f"job {job!r} was asked to stop, and has not ended after {within:g} minutes")
            last = registry.ask(actor, "status") or last
            time.sleep(LOOK_S)
        while job in registry.jobs() and (status := registry.ask(actor, "status")) is not None:
            last = status
            if not status["followed"]:
                dismiss(actor)  # nobody takes its result
                break
            time.sleep(LOOK_S)
    step = last["step"] if last is not None else 0
    typer.echo(f"{job}: stopped, saved at step {step:,}" if step else f"{job}: stopped before its first checkpoint")
