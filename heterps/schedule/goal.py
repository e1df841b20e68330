"""What the user wants of a plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from heterps.errors import InvalidInput
from heterps.units import SECONDS_PER_HOUR

Mode = Literal["async", "sync"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """Exactly one of: `min_throughput`; `samples` with `deadline_hours`; `samples` with `budget_usd`.

    The first two ask for the least cost per sample, the third for the fastest plan whose whole job stays within the
    budget. `max_usd_per_hour` goes with any of them. In mode `sync` the pipeline drains after `micro_batches`
    micro-batches, which costs throughput; in mode `async` it is always full.
    """

    min_throughput: float | None = None
    samples: float | None = None
    deadline_hours: float | None = None
    budget_usd: float | None = None
    max_usd_per_hour: float | None = None
    mode: Mode = "async"
    micro_batches: int | None = None

    def __post_init__(self) -> None:
        for name in ("min_throughput", "samples", "deadline_hours", "budget_usd", "max_usd_per_hour"):
            value = getattr(self, name)
            allowed = value is None or (
                math.isfinite(value) and (value > 0 or (value == 0 and name == "min_throughput"))
            )
            if not allowed:
                raise InvalidInput(f"{_option(name)} is {value}; it must be a number above 0")
        stated = [self.min_throughput is not None, self.deadline_hours is not None, self.budget_usd is not None]
        if sum(stated) != 1:
            raise InvalidInput(
                "state one goal: --min-throughput, or --samples with --deadline-hours, or --samples with --budget-usd"
                + ("; more than one was given" if sum(stated) else "; none was given")
            )
        if (self.samples is None) == (self.min_throughput is None):
            raise InvalidInput("--samples goes with --deadline-hours or --budget-usd, and they with it")
        if self.mode not in ("async", "sync"):
            raise InvalidInput(f"mode is {self.mode!r}; it must be async or sync")
        if (self.mode == "sync") != (self.micro_batches is not None):
            raise InvalidInput("--mode sync needs --micro-batches, and --micro-batches goes with --mode sync only")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise InvalidInput(f"--micro-batches is {self.micro_batches}; it must be 1 or more")

    @property
    def throughput_floor(self) -> float:
        """Samples a second that the plan must reach; 0 if any will do."""
        if self.samples is not None and self.deadline_hours is not None:
            return self.samples / (self.deadline_hours * SECONDS_PER_HOUR)
        return self.min_throughput or 0.0

    @property
    def max_usd_per_sample(self) -> float:
        """Money a sample may cost; infinite unless there is a budget."""
        if self.samples is not None and self.budget_usd is not None:
            return self.budget_usd / self.samples
        return math.inf

    @property
    def fastest(self) -> bool:
        """True if throughput is to be maximised within the money, false if the cost per sample is to be minimised."""
        return self.budget_usd is not None

    def fill(self, stages: int) -> float:
        """Share of the steady-state throughput that a pipeline of so many stages keeps."""
        return 1.0 if self.micro_batches is None else self.micro_batches / (self.micro_batches + stages - 1)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
