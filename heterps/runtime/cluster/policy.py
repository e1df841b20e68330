"""What to do when something goes wrong: from an event to a decision, both plain data. The coordinator acts on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

LOOK_S = 1.0
"""Between two looks whether the machines are there."""


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
    """A process raised. `final` errors are the user's to mend, and would come again: bad input, code that raises."""

    who: str
    error: str
    final: bool


@dataclass(frozen=True, slots=True)
class Lacking:
    """The machines that are there do not hold the plan."""

    what: str
    waited_s: float
    begun: bool
    """Whether they held it before: one that is gone may come back by itself."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A replica takes several times as long as the others of its stage, one stretch of steps after the other."""

    who: str
    times: float
    machine: str = ""


@dataclass(frozen=True, slots=True)
class Returned:
    """The run has a smaller plan than it was given, and there is room for that one again."""


Event = Died | Frozen | Stalled | Raised | Lacking | Straggler | Returned


@dataclass(frozen=True, slots=True)
class Retry:
    """Look again."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Restart:
    """Everything of the attempt is stopped, and a new one goes on from the last checkpoint."""

    after_s: float
    """Seconds to wait first."""


@dataclass(frozen=True, slots=True)
class Replan:
    """The next attempt gets a smaller plan, which the machines hold."""


@dataclass(frozen=True, slots=True)
class Tell:
    """Nothing but saying so."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The run has failed."""

    reason: str


Decision = Retry | Restart | Replan | Tell | GiveUp


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """When to lose patience."""

    tries: int = 5
    """Failures in a row, without a checkpoint between them, before the run is given up."""
    frozen_s: float = 15.0
    """Seconds without an answer after which a process counts as frozen."""
    boot_s: float = 40.0
    """Seconds that a new process has to give its first answer; doubles with each failure in a row."""
    stalled_s: float = 300.0
    """Seconds without a finished step, while all answer."""
    start_s: float = 120.0
    """Seconds that the processes of an attempt have to find room, and then to start with the model and the data."""
    pause_s: float = 0.5
    """Before the first restart; it doubles with each further failure in a row, up to a minute."""
    wait_s: float = 0.0
    """Seconds to wait for machines that hold the plan. A run that had them waits `start_s` at least for a lost one."""
    elastic: bool = False
    """After that wait go on by a smaller plan, instead of giving up."""
    stragglers: Literal["tell", "replace"] = "tell"
    slow: float = 1.5
    """Times the median of its stage above which a replica is slow (assumed: beyond what sharing a machine does)."""
    slow_stretches: int = 3
    """Stretches of steps in a row, of a second or two each, for which it must be slow."""
    replacements: int = 3
    """Stragglers to replace in one run; a cluster that is slow all over is not mended by moving."""


def decide(event: Event, *, failures: int, limits: Limits) -> Decision:
    """What to do after the `failures`-th failure in a row; of stragglers, those replaced so far."""
    if isinstance(event, Returned):
        return Restart(0.0)
    if isinstance(event, Straggler):
        return Restart(0.0) if limits.stragglers == "replace" and failures < limits.replacements else Tell()
    if isinstance(event, Lacking):
        return _without_room(event, limits)
    if isinstance(event, Raised) and event.final:
        return GiveUp(event.error)
    if failures > limits.tries:
        return GiveUp(f"{describe(event)}; that was failure {failures} in a row, without a checkpoint between them")
    return Restart(min(60.0, limits.pause_s * 2.0 ** (failures - 1)))


def _without_room(event: Lacking, limits: Limits) -> Decision:
    patience_s = max(limits.wait_s, limits.start_s) if event.begun and not limits.elastic else limits.wait_s
    if event.waited_s < patience_s:
        return Retry(min(LOOK_S, patience_s - event.waited_s))
    if limits.elastic:
        return Replan()
    return GiveUp(f"{describe(event)}; plan for less, add machines, or --wait for them")


def find_stragglers(paces: Mapping[str, Sequence[float]], *, limits: Limits) -> dict[str, float]:
    """Replicas of one stage that are slow, and how many times the median they took last.

    Args:
        paces: what each replica took for its work in each stretch, the newest last: seconds for the same amount.
        limits: a replica is slow if it took more than `slow` times the median of the stage in each of the last
            `slow_stretches`. Of two replicas the faster one is the median.
    """
    count = limits.slow_stretches
    if len(paces) < 2 or any(len(pace) < count for pace in paces.values()):
        return {}
    medians = [median_low(pace[-back] for pace in paces.values()) for back in range(count, 0, -1)]
    found = {}
    for who, pace in paces.items():
        times = [own / median if median > 0 else 1.0 for own, median in zip(pace[-count:], medians, strict=True)]
        if min(times) > limits.slow:
            found[who] = times[-1]
    return found


def kind_of(event: Event) -> str:
    """An event in one word, for counting."""
    return type(event).__name__.lower()


def describe(event: Event) -> str:
    """An event in words."""
    if isinstance(event, Died):
        return f"{event.who} died" + (f": {event.why}" if event.why else "")
    if isinstance(event, Frozen):
        return f"{event.who} gave no answer for {event.seconds:.0f} s"
    if isinstance(event, Stalled):
        return f"no step was finished for {event.seconds:.0f} s"
    if isinstance(event, Lacking):
        return f"the cluster cannot hold the plan: {event.what}"
    if isinstance(event, Straggler):
        where = f" on {event.machine}" if event.machine else ""
        return f"{event.who}{where} takes {event.times:.1f} times as long as the others of its stage"
    if isinstance(event, Returned):
        return "the machines hold the whole plan again"
    return f"{event.who} failed: {event.error}"
