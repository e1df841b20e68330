"""What a simulated run meets that the closed form does not know of."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heterps.errors import InvalidInput

MICRO_BATCHES = 4
"""Micro-batches a step where the plan does not say: a job's default."""

FULL = 4
"""Micro-batches in flight for each stage that keep it busy: one computes, one communicates, one comes, one goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Chance, the network and failures; by default none of them, so that a simulation agrees with the closed form."""

    jitter: float = 0.0
    """Standard deviation of the logarithm of a unit's time for one micro-batch; its mean stays."""
    shared_gbps: float | None = None
    """Gigabits a second of the network that all stages share; None: as much as their own links."""
    micro_batches: int | None = None
    """Micro-batches a step; None: what the goal says, or 4."""
    staleness: int | None = None
    """Steps that may enter before an earlier one is done; None: 0 for `sync`, as many as keep the stages busy for
    `async`."""
    failures_per_unit_hour: float = 0.0
    """How often a unit fails, on average."""
    restart_s: float = 300.0
    """Seconds from a failure until training goes on. Assumed: a new machine, and rows read back."""
    checkpoint_every_s: float = 600.0
    """Seconds of training between checkpoints: a job's default of 10 minutes."""
    checkpoint_s: float = 0.0
    """Seconds that a checkpoint stops training; 0: it is written meanwhile."""
    hours: float = 24.0
    """Length of the run in which failures are drawn."""
    steps: int = 200
    """Steps simulated event by event, after those that fill the pipeline."""
    seed: int = 0

    def __post_init__(self) -> None:
        self._check("jitter", self.jitter, least=0.0, most=3.0)
        self._check("shared_gbps", self.shared_gbps, above=0.0)
        self._check("micro_batches", self.micro_batches, least=1)
        self._check("staleness", self.staleness, least=0, most=1000)
        self._check("failures_per_unit_hour", self.failures_per_unit_hour, least=0.0, most=1000.0)
        self._check("restart_s", self.restart_s, least=0.0)
        self._check("checkpoint_every_s", self.checkpoint_every_s, above=0.0)
        self._check("checkpoint_s", self.checkpoint_s, least=0.0)
        self._check("hours", self.hours, above=0.0)
        self._check("steps", self.steps, least=1)

    @staticmethod
    def _check(
        name: str, value: float | None, *, least: float = -math.inf, most: float = math.inf, above: float = -math.inf
    ) -> None:
        if value is None or (math.isfinite(value) and least <= value <= most and value > above):
            return
        option = "--failures" if name == "failures_per_unit_hour" else "--" + name.replace("_", "-")
        rule = f"above {above:g}" if above > -math.inf else f"{least:g} or more"
        raise InvalidInput(
            f"{option} is {value:g}; it must be {rule}" + (f", at most {most:g}" if most < math.inf else "")
        )

    def steps_in_flight(self, *, stages: int, sync: bool, micro_batches: int) -> int:
        """The staleness that holds for a pipeline of so many stages."""
        if self.staleness is not None:
            return self.staleness
        return 0 if sync else math.ceil(FULL * stages / micro_batches)
