"""What the processes of a run are told, and what they tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from heterps.models import Chain
from heterps.runtime.cluster.layout import Layout
from heterps.runtime.settings import Settings

Factory = Callable[[], tuple[Chain, Any]]
"""Makes the chain with its first weights, and the data, equal wherever it is called."""


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


@dataclass(frozen=True, slots=True)
class Address:
    """Where a replica is found."""

    mail: str
    rendezvous: tuple[str, int] | None
    """Where the replicas of its stage meet for all-reduce; of the first one alone."""


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


def for_processes(settings: Settings, *, micro_batches: int) -> Settings:
    """The settings that all processes get: without what belongs to the one that asked."""
    return replace(
        settings, micro_batches=micro_batches, recorder=None, client=None, evaluation=None, on_log=None,
        checkpoints=None, devices=None, progress=False,
    )  # fmt: skip
