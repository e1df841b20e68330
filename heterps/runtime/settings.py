"""How a run goes: everything but the model, the data and the plan."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from heterps.errors import InvalidInput, did_you_mean
from heterps.ps import Client
from heterps.runtime.checkpoint import Checkpoints
from heterps.runtime.checks import check_above_zero, check_between, check_whole
from heterps.runtime.schedules import Schedule
from heterps.runtime.stage import OptimizerFactory
from heterps.telemetry import Recorder

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16, "bfloat16": torch.bfloat16}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}  # fmt: skip
SUMS = ("auto", "mail", "gloo", "nccl")
"""How engine ray adds up dense gradients over replicas; auto: nccl on GPUs, else mail."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlyStop:
    """Ends a run when evaluations no longer get better."""

    patience: int = 3
    """Evaluations without a gain."""
    min_gain: float = 0.0
    """AUC (or loss, for a chain without a score) must get better by more than this."""

    def __post_init__(self) -> None:
        check_whole("early_stop: patience", self.patience, least=1)
        check_between("early_stop: min_gain", self.min_gain, 0, math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Options of `heterps.train`."""

    mode: Literal["sync", "async"] = "sync"
    """sync: all micro-batches of a step see the same weights. async: stages run ahead by up to `staleness` steps."""
    staleness: int | None = None
    """Steps a stage may run ahead of its updates; None: 0 in sync mode, 1 in async mode."""
    micro_batches: int = 1
    """Parts a batch is cut into, so that stages work at the same time on one step."""
    batch_size: int = 4096
    """Samples of a step, for data from a source."""
    steps: int | None = None
    """Steps in all, those before a resume included; None: as many as `epochs` gives."""
    epochs: int | None = None
    """Passes over a source's data; None: 1, or as many as `steps` needs."""
    optimizer: str | OptimizerFactory = "adam"
    """Of dense weights: a name, or a function from parameters to a torch optimizer, called once for each stage."""
    lr: float = 1e-3
    """Learning rate of a named optimizer. Rows have their own, in the embedding layers."""
    schedule: Schedule | None = None
    """Step -> factor of all learning rates, those of rows included; see `heterps.runtime.schedules`."""
    clip_norm: float | None = None
    """Largest norm of a step's dense gradients. Rows have clipping of their own, in their tables."""
    precision: str = "float32"
    """float32, or bf16: of forward and backward; weights, rows and updates stay float32."""
    seed: int = 0
    """Of shuffling and of first values of rows."""
    evaluation: Any = None
    """Held-out data: a source, or batches that can be read again and again."""
    eval_every: int | None = None
    """Steps between evaluations; None: at the end only, if there is held-out data."""
    eval_batches: int | None = None
    """Batches of an evaluation; None: all."""
    early_stop: EarlyStop | None = None
    checkpoints: Checkpoints | None = None
    """Where and how often to save; a run takes up the newest one there is."""
    resume: bool = True
    """Take up the newest checkpoint; with False the run starts anew, and refuses a path that has some."""
    client: Client | None = None
    """Parameter servers that hold the tables; None: tables in this process."""
    devices: Mapping[str, str] | None = None
    """Resource type -> device of this machine, or several joined by +, where it is not the plan's."""
    recorder: Recorder | None = None
    """Of spans, counters and scalars; None: nothing is written."""
    progress: bool = False
    """Show a progress line."""
    log_every: int = 20
    """Steps between scalars and updates of the progress line."""
    on_log: Callable[[int, float], None] | None = None
    """Called as often with the samples trained by this call, and the seconds without evaluations and checkpoints."""

    def __post_init__(self) -> None:
        if self.mode not in ("sync", "async"):
            raise InvalidInput(f"mode is sync or async, not {self.mode!r}")
        for name in ("micro_batches", "batch_size", "log_every"):
            check_whole(name, getattr(self, name), least=1)
        for name in ("steps", "epochs", "eval_every", "eval_batches"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), least=1)
        if self.staleness is not None:
            check_whole("staleness", self.staleness, least=0)
        if self.mode == "sync" and self.staleness:
            raise InvalidInput(f"staleness {self.staleness} needs mode='async'; sync training has none")
        if self.precision not in PRECISIONS:
            hint = did_you_mean(self.precision, PRECISIONS)
            raise InvalidInput(f"precision is float32 or bf16, not {self.precision!r}.{hint}")
        if isinstance(self.optimizer, str) and self.optimizer not in OPTIMIZERS:
            hint = did_you_mean(self.optimizer, OPTIMIZERS)
            raise InvalidInput(f"optimizer is one of {', '.join(OPTIMIZERS)}, not {self.optimizer!r}.{hint}")
        if isinstance(self.optimizer, str):
            check_above_zero("lr", self.lr)
        if not isinstance(self.optimizer, str) and not callable(self.optimizer):
            raise InvalidInput(
                "optimizer is a name, or a function from parameters to a torch optimizer, not one itself"
            )
        if self.clip_norm is not None:
            check_above_zero("clip_norm", self.clip_norm)
        for name, kind in (("early_stop", EarlyStop), ("checkpoints", Checkpoints)):
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise InvalidInput(f"{name} is a {kind.__name__}, not {value!r}")

    @property
    def steps_ahead(self) -> int:
        """The staleness in force."""
        if self.mode == "sync":
            return 0
        return 1 if self.staleness is None else self.staleness

    @property
    def dtype(self) -> torch.dtype:
        """Of forward and backward."""
        return PRECISIONS[self.precision]

    def make_optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimizer of a stage."""
        if not isinstance(self.optimizer, str):
            made: object = self.optimizer(parameters)
            if not isinstance(made, torch.optim.Optimizer):
                raise InvalidInput(f"optimizer: the function returned {made!r}, not a torch optimizer")
            return made
        on_gpu = any(parameter.is_cuda for parameter in parameters)
        fused = self.optimizer in ("adam", "adamw", "sgd") or (self.optimizer == "adagrad" and not on_gpu)
        return OPTIMIZERS[self.optimizer](parameters, lr=self.lr, **({"fused": True} if fused else {}))
