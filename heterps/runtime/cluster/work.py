"""What the processes of a run are told, and what they tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from heterps.models import Chain
from heterps.ps.shared import Offer
from heterps.runtime.cluster.layout import Layout
from heterps.runtime.settings import Settings

Factory = Callable[[], tuple[Chain, Any]]
"""Makes the chain with its first weights, and the data, equal wherever it is called."""


SpanOf = tuple[str, float, float, int, int | None]
"""A stretch of work: its name as in `heterps.telemetry.WORK`, when it began (seconds since 1970, by the clock of its
machine), how many seconds it took, its step, and its micro-batch if it has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """What all processes of a run are told; `settings` without what belongs to one process."""

    factory: Factory
    settings: Settings
    layout: Layout
    narrow: bool = False
    """Activations and their gradients travel as bf16."""
    timeout_s: float = 600.0
    """Longest wait of a replica for another one."""
    evaluation: Callable[[], Any] | None = None
    """Makes the held-out data, for the coordinator; called after `factory`."""
    avoid: tuple[str, ...] = ()
    """Machines (Ray's ids of nodes) that get no process of the run."""
    share: bool = True
    """Whether processes of one machine share memory."""
    sums: str = "auto"
    """How dense gradients are added up: mail (with keys), gloo, nccl; auto: nccl on GPUs, else mail."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica is found."""

    mail: str
    offer: Offer | None
    """Of the memory that it shares with replicas of its machine."""
    rendezvous: tuple[str, int] | None
    """Where the replicas of its stage meet for all-reduce; of the first one alone, if they need to."""

    @property
    def host(self) -> str:
        """The machine, as others reach it."""
        return self.mail.rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a replica stands after some steps."""

    step: int
    samples: int
    position: Any
    ended: bool
    """The data is over."""
    losses: tuple[float, ...]
    """Its share of the loss of each of these steps; empty but for the last stage."""
    auc: dict[str, Any] | None
    """Counts of all its scores since `begin`."""
    skipped_rows: int
    busy_s: float
    """Seconds of its computing in these steps."""
    waited_s: float = 0.0
    """Seconds in which it waited for others in these steps."""
    aucs: tuple[tuple[int, dict[str, Any]], ...] = ()
    """(steps done, `auc` at that moment) for each of these steps at which the settings' `log_every` asks for it."""
    spans: tuple[SpanOf, ...] = ()
    """What it did when, in these steps; of the first replica of each stage alone."""


def for_processes(settings: Settings, *, micro_batches: int) -> Settings:
    """The settings that all processes get: without what belongs to the one that asked."""
    return replace(
        settings, micro_batches=micro_batches, recorder=None, client=None, evaluation=None, on_log=None,
        checkpoints=None, devices=None, progress=False,
    )  # fmt: skip
