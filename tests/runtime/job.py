"""A small training job for processes of its own: `python -m tests.runtime.job CHECKPOINTS RESULT STEPS`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from heterps.models import Batch
from heterps.runtime import Checkpoints, train
from tests.runtime.chains import IDS, random_batches, small
from tests.runtime.plain import rows_of
from tests.runtime.plans import make_plan

EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir", "shutil.rmtree"})


def job(checkpoints: Path, result: Path, steps: int, *, kill_at: int = 0, every_steps: int = 2) -> None:
    """Trains to `steps`, or goes on with it; writes losses and weights to `result`.

    With `kill_at` n, the process ends by SIGKILL when it is about to do its n-th thing in the checkpoints' directory.
    """
    if kill_at:
        _die_at(str(checkpoints), kill_at)
    chain = small()
    found = train(
        chain, forever(random_batches(6)), make_plan(chain, (1, 3)), micro_batches=2, steps=steps, lr=0.01,
        checkpoints=Checkpoints(path=checkpoints, every_steps=every_steps, keep=1),
    )  # fmt: skip
    weights = {**chain.state_dict(), "rows": rows_of(chain, "rows", IDS)}
    torch.save({"weights": weights, "losses": found.losses, "stopped": found.stopped, "steps": found.steps}, result)


class forever(Iterable[Batch]):  # noqa: N801
    """Batches again and again, the first of which says on stdout that training has begun."""

    def __init__(self, batches: list[Batch]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Batch]:
        print("training", flush=True)  # noqa: T201
        return iter(self.batches)


def _die_at(path: str, number: int) -> None:
    count = 0

    def hook(event: str, args: tuple[Any, ...]) -> None:
        nonlocal count
        if event in EVENTS and any(
            isinstance(arg, str | os.PathLike) and os.fspath(arg).startswith(path) for arg in args
        ):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


if __name__ == "__main__":
    job(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), **json.loads(sys.argv[4] if sys.argv[4:] else "{}"))
