"""`heterps pretrain`: makes the policies that ship with the package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def pretrain(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where policy-lstm.npz and policy-rnn.npz go.")],
    batches: Annotated[int, typer.Option(min=1, help="Batches of random problems, 16 in each.")] = 700,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the problems.")] = 30,
    seed: Annotated[int, typer.Option(help="Seed of problems and weights.")] = 0,
) -> None:
    """Train the policies of rl and rl-rnn on random problems, as shipped with the defaults."""
    from heterps.schedule.rl.pretrain import pretrain as train

    train(out, batches=batches, epochs=epochs, seed=seed, say=typer.echo)
