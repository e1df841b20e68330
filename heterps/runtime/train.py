"""`heterps.train`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Any

from heterps.errors import InvalidInput, did_you_mean
from heterps.models import Chain
from heterps.plan import Plan
from heterps.runtime.checkpoint import Checkpoints
from heterps.runtime.result import Result
from heterps.runtime.schedules import make_schedule
from heterps.runtime.settings import EarlyStop, Settings
from heterps.runtime.trainer import Trainer


def train(chain: Chain, data: Any, plan: Plan | str | PathLike[str] | None = None, **settings: Any) -> Result:
    """Trains a chain by a plan in this process, and gives what plain PyTorch would give.

    Args:
        chain: the model. Its weights are trained in place; its tables are made here unless they are bound already.
        data: a `heterps.data` source, or batches: dictionaries of tensors, in any iterable.
        plan: which layer runs where, or its file; None: everything on this machine's GPU, or else on its cores.
        **settings: the fields of `heterps.runtime.Settings`, such as mode, micro_batches, steps or optimizer.

    Raises:
        InvalidInput: for settings, a plan or batches that do not fit.
        StageFailed: when a layer raises; the cause is its error.
        NotFinite: when the loss is no number any more.
        DataEnded: when the data ends before the steps that were asked for.
        CheckpointFailed: when a checkpoint cannot be written or read.
    """
    known = {field.name for field in fields(Settings)}
    for name in settings:
        if name not in known:
            raise InvalidInput(f"train has no setting {name!r}.{did_you_mean(name, known)}")
    for name in ("eval_every", "early_stop"):
        if settings.get(name) is not None and settings.get("evaluation") is None:
            raise InvalidInput(f"{name} needs evaluation: held-out data")
    if isinstance(plan, str | PathLike):
        plan = Plan.load(Path(plan))
    return Trainer(chain, data, plan, Settings(**_made(settings))).run()


def _made(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in the short forms of job files as the values they stand for."""
    made = dict(settings)
    if isinstance(made.get("checkpoints"), str | PathLike):
        made["checkpoints"] = Checkpoints(path=made["checkpoints"])
    if isinstance(made.get("early_stop"), Mapping):
        made["early_stop"] = EarlyStop(**made["early_stop"])
    if isinstance(made.get("schedule"), str | Mapping):
        made["schedule"] = make_schedule(made["schedule"])
    return made
