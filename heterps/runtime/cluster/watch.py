"""Calls to actors, waited for while all of them are watched: dead, frozen and stalled ones end the waiting."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import Any

from heterps.data.reader import MalformedRow
from heterps.errors import HeterPSError, InvalidInput
from heterps.ps import InvalidRequest
from heterps.runtime.cluster._ray import CONTROL, exceptions, ray
from heterps.runtime.cluster.policy import Died, Event, Frozen, Limits, Raised, Stalled
from heterps.runtime.pipeline import StageFailed

TICK_S = 0.25
"""Between two looks at all actors."""
STOOD_S = 2.0
"""If more than this lies between two looks, we stood still, or were busy: the rest of it is nobody's silence."""
MISTAKES = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NameError, NotImplementedError,
    SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""What Python raises for a mistake in code, such as that of a model or of its data: it would come again. Other errors
may pass: files and connections (OSError), memory, and what libraries make of both (RuntimeError among them)."""


class Failed(Exception):
    """An attempt failed by an event; `error` is what an actor raised, if one did."""

    def __init__(self, event: Event, error: BaseException | None = None) -> None:
        super().__init__(event)
        self.event = event
        self.error = error


def is_final(error: HeterPSError) -> bool:
    """Whether an error of ours would come again after a restart. What servers refuse may be the end of one of them."""
    return isinstance(error, InvalidInput | StageFailed | MalformedRow) and not isinstance(error, InvalidRequest)


class Watch:
    """Watches actors by name."""

    def __init__(self, limits: Limits, *, failures: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """After so many `failures` in a row, processes have longer to start: they may be slow rather than frozen."""
        self._limits, self._clock = limits, clock
        self._boot_s = limits.boot_s * 2.0**failures
        self._actors: dict[str, Any] = {}
        self._beats: dict[str, tuple[Any, float]] = {}
        self._steps: dict[str, int] = {}
        self._endless: dict[Any, str] = {}
        self._done = -1
        self._moved = self._looked = clock()

    def add(self, name: str, actor: Any) -> None:
        """From now on this one has to answer; its first answer may take as long as a process takes to start."""
        self._actors[name] = actor

    def add_endless(self, name: str, call: Any) -> None:
        """A call that ends only when its actor does."""
        self._endless[call] = name

    def all(self, calls: Mapping[str, Any], *, stepping: bool = False, within_s: float = math.inf) -> list[Any]:
        """What all calls (references by the name of their actor) give; with `stepping`, steps must get done meanwhile.

        Raises:
            Failed: as soon as one of them fails, or any actor dies or freezes.
        """
        names = {call: name for name, call in calls.items()}
        found: dict[str, Any] = {}
        self._moved = began = self._clock()
        while len(found) < len(calls):
            waiting = [call for call, name in names.items() if name not in found]
            ready, _ = ray.wait([*waiting, *self._endless], timeout=TICK_S)
            for call in ready:
                name = names.get(call) or self._endless[call]
                found[name] = self._get(name, call)
            self.tick(stepping=stepping)
            if self._clock() - began > within_s and (late := [name for name in calls if name not in found]):
                raise Failed(Frozen(", ".join(late), within_s))
        return [found[name] for name in calls]

    def future(self, future: Future[Any]) -> Any:
        """What a thread of this process gives, while the actors are watched."""
        while not wait([future], timeout=TICK_S).done:
            self.tick()
        try:
            return future.result()
        except (HeterPSError, OSError) as error:
            raise _raised("the coordinator", error) from error

    def tick(self, *, stepping: bool = False) -> None:
        """Looks at all actors once."""
        now = self._clock()
        stood_s, self._looked = max(0.0, now - self._looked - STOOD_S), now
        self._moved += stood_s
        self._beats = {name: (call, asked + stood_s) for name, (call, asked) in self._beats.items()}
        for name, actor in self._actors.items():
            if name not in self._beats:
                self._beats[name] = (_beat(actor), now)
        if not self._beats:
            return
        answered, _ = ray.wait([call for call, _ in self._beats.values()], num_returns=len(self._beats), timeout=0)
        for name, (call, asked) in list(self._beats.items()):
            if call in answered:
                self._steps[name] = self._get(name, call)
                self._beats[name] = (_beat(self._actors[name]), now)
            elif now - asked > (self._limits.frozen_s if name in self._steps else self._boot_s):
                raise Failed(Frozen(name, now - asked))
        done = sum(self._steps.values())
        if done != self._done or not stepping:
            self._done, self._moved = done, now
        elif now - self._moved > self._limits.stalled_s:
            raise Failed(Stalled(now - self._moved))

    def _get(self, name: str, call: Any) -> Any:
        try:
            return ray.get(call)
        except exceptions.RayTaskError as error:
            raise _raised(name, error.cause if isinstance(error.cause, BaseException) else error) from None
        except exceptions.RayActorError as error:
            raise Failed(Died(name, str(error).strip().splitlines()[0])) from None
        except exceptions.RayError as error:
            raise Failed(Raised(name, f"{type(error).__name__}: {error}", False), error) from None


def _raised(name: str, error: BaseException) -> Failed:
    """The failure of one who raised. A mistake in code gets the words that it has in a layer."""
    if isinstance(error, HeterPSError):
        return Failed(Raised(name, str(error), is_final(error)), error)
    what = f"{type(error).__name__}: {error}"
    if isinstance(error, MISTAKES):
        told = StageFailed(f"{name} failed: {what}" + "".join(f" ({note})" for note in getattr(error, "__notes__", ())))
        return Failed(Raised(name, str(told), is_final(told)), told)
    return Failed(Raised(name, what, False), error)


def _beat(actor: Any) -> Any:
    return actor.beat.options(concurrency_group=CONTROL).remote()


def names_of(seats: Sequence[Any], shards: int) -> tuple[list[str], list[str]]:
    """What replicas and shards are called."""
    return [str(seat) for seat in seats], [f"shard {number}" for number in range(shards)]
