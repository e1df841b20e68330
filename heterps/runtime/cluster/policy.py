"""What to do when something goes wrong: from an event to a decision, both plain data. The coordinator acts on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Died:
    """A process of the run is gone."""

    who: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Frozen:
    """A process is there and does not answer."""

    who: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Stalled:
    """All answer, and no step was finished for so long."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Raised:
    """A process raised. `final` errors are the user's to mend, and would come again: bad input, a layer that raises."""

    who: str
    error: str
    final: bool


Event = Died | Frozen | Stalled | Raised


@dataclass(frozen=True, slots=True)
class Restart:
    """Everything of the attempt is stopped, and a new one goes on from the last checkpoint."""

    after_s: float
    """Seconds to wait first."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run has failed."""

    reason: str


Decision = Restart | GiveUp


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When to lose patience."""

    tries: int = 5
    """Failures in a row, without a checkpoint between them, before the run is given up."""
    frozen_s: float = 15.0
    """Seconds without an answer after which a process counts as frozen."""
    stalled_s: float = 300.0
    """Seconds without a finished step, while all answer."""
    start_s: float = 120.0
    """Seconds that the processes of an attempt have to find room, and then to start with the model and the data."""
    pause_s: float = 0.5
    """Before the first restart; it doubles with each further failure in a row, up to a minute."""


def decide(event: Event, *, failures: int, limits: Limits) -> Decision:
    """What to do after the `failures`-th failure in a row."""
    if isinstance(event, Raised) and event.final:
        return GiveUp(event.error)
    if failures > limits.tries:
        return GiveUp(f"{describe(event)}; that was failure {failures} in a row, without a checkpoint between them")
    return Restart(min(60.0, limits.pause_s * 2.0 ** (failures - 1)))


def describe(event: Event) -> str:
    """An event in words."""
    if isinstance(event, Died):
        return f"{event.who} died" + (f": {event.why}" if event.why else "")
    if isinstance(event, Frozen):
        return f"{event.who} gave no answer for {event.seconds:.0f} s"
    if isinstance(event, Stalled):
        return f"no step was finished for {event.seconds:.0f} s"
    return f"{event.who} failed: {event.error}"
