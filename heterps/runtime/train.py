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
from heterps.runtime.settings import SUMS, EarlyStop, Settings
from heterps.runtime.trainer import Trainer


def train(
    chain: Chain,
    data: Any,
    plan: Plan | str | PathLike[str] | None = None,
    *,
    engine: str | Mapping[str, Any] = "local",
    **settings: Any,
) -> Result:
    """Trains a chain by a plan, in this process or on a Ray cluster, and gives what plain PyTorch would give.

    Args:
        chain: the model. Its weights are trained in place; its tables are made here unless they are bound already.
        data: a `heterps.data` source, or batches: dictionaries of tensors, in any iterable.
        plan: which layer runs where, or its file; None: everything on this machine's GPU, or else on its cores.
        engine: local: in this process; ray: over processes of a Ray cluster, for which a plan is needed, and data that
            can be sent to them. Or the engine section of a job file, such as {"name": "ray", "address": "auto"};
            "job" is what `heterps status` calls it then.
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
    made, options = Settings(**_made(settings)), _engine(engine)
    if options is None:
        return Trainer(chain, data, plan, made).run()
    if plan is None:
        raise InvalidInput("engine ray runs a plan: give one (heterps.plan makes it), or use engine local")
    from heterps.runtime.cluster.sending import train_sent

    return train_sent(chain, data, plan, made, **options)


_ENGINE = {
    "address": None, "replicas": None, "shards": None, "wait_minutes": 0.0, "compress": None, "elastic": False,
    "sums": "auto", "stragglers": "tell", "metrics_port": None, "metrics_host": None, "job": "train", "plan_for": None,
}  # fmt: skip
"""Options of engine ray, and their defaults."""


def _engine(given: str | Mapping[str, Any]) -> dict[str, Any] | None:
    """The options of `train_on_ray`; None for engine local."""
    options = {"name": given} if isinstance(given, str) else dict(given)
    name = options.pop("name", None)
    if name not in ("local", "ray"):
        raise InvalidInput(f"engine is 'local' or 'ray', or a mapping with that name, not {given!r}")
    for key in options:
        if key not in _ENGINE or name == "local":
            raise InvalidInput(f"engine {name} has no option {key!r}.{did_you_mean(key, _ENGINE)}")
    if name == "local":
        return None
    found = {**_ENGINE, **options}
    if found["compress"] not in (None, "bf16") or found["stragglers"] not in ("tell", "replace"):
        raise InvalidInput("engine ray: compress is 'bf16' or None, and stragglers 'tell' or 'replace'")
    if found["sums"] not in SUMS:
        raise InvalidInput(f"engine ray: sums is one of {', '.join(SUMS)}, not {found['sums']!r}")
    return {
        **{key: found[key] for key in _ENGINE if key not in ("wait_minutes", "compress", "job")},
        "wait_s": 60.0 * found["wait_minutes"], "narrow": found["compress"] == "bf16", "name": found["job"],
    }  # fmt: skip


def _made(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in the short forms of job files as the values they stand for."""
    made = dict(settings)
    if isinstance(made.get("checkpoints"), str | PathLike):
        made["checkpoints"] = Checkpoints(path=made["checkpoints"])
    if isinstance(made.get("early_stop"), Mapping):
        known = {field.name for field in fields(EarlyStop)}
        for key in made["early_stop"]:
            if key not in known:
                raise InvalidInput(f"early_stop has no {key!r}.{did_you_mean(str(key), known)}")
        made["early_stop"] = EarlyStop(**made["early_stop"])
    if isinstance(made.get("schedule"), str | Mapping):
        made["schedule"] = make_schedule(made["schedule"])
    return made
