"""`heterps.train`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from heterps.errors import InvalidInput, did_you_mean
from heterps.models import Chain
from heterps.plan import Plan
from heterps.runtime.result import Result
from heterps.runtime.settings import Settings
from heterps.runtime.trainer import Trainer


def train(chain: Chain, data: Any, plan: Plan | None = None, **settings: Any) -> Result:
    """Trains a chain by a plan in this process, and gives what plain PyTorch would give.

    Args:
        chain: the model. Its weights are trained in place; its tables are made here unless they are bound already.
        data: a `heterps.data` source, or batches: dictionaries of tensors, in any iterable.
        plan: which layer runs where; None: everything on this machine's GPU, or else on its cores.
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
    return Trainer(chain, data, plan, Settings(**settings)).run()
