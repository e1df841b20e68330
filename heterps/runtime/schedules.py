"""Learning-rate schedules: functions from the number of a step to a factor of the initial learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from heterps.errors import InvalidInput, did_you_mean

Schedule = Callable[[int], float]


def warmup(steps: int, then: Schedule | None = None) -> Schedule:
    """Rises in a line to 1 over the first `steps` steps, then goes on with `then` (from its step 0), or stays."""

    def factor(step: int) -> float:
        if step < steps:
            return (step + 1) / steps
        return 1.0 if then is None else then(step - steps)

    return factor


def cosine(steps: int, *, least: float = 0.0) -> Schedule:
    """Falls from 1 to `least` along half a cosine over `steps` steps, then stays there."""
    return lambda step: least + (1 - least) * (1 + math.cos(math.pi * min(step, steps) / steps)) / 2


def linear(steps: int, *, least: float = 0.0) -> Schedule:
    """Falls from 1 to `least` in a line over `steps` steps, then stays there."""
    return lambda step: 1 - (1 - least) * min(step, steps) / steps


def exponential(*, gamma: float, every: int = 1) -> Schedule:
    """Times `gamma` after each `every` steps."""
    return lambda step: float(gamma ** (step // every))


_KINDS: dict[str, Callable[..., Schedule]] = {"cosine": cosine, "linear": linear, "exponential": exponential}


def make_schedule(spec: Mapping[str, Any] | str | None) -> Schedule | None:
    """From a job file: {name: cosine | linear | exponential | constant, warmup_steps: 100, and its own options}."""
    if spec is None:
        return None
    options: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    name, rise = options.pop("name", "constant"), options.pop("warmup_steps", 0)
    if name == "constant":
        then = None
    elif name in _KINDS:
        try:
            then = _KINDS[name](**options)
        except TypeError as error:
            raise InvalidInput(f"schedule {name!r}: {error}") from None
    else:
        known = ("constant", *_KINDS)
        raise InvalidInput(f"schedule is one of {', '.join(known)}, not {name!r}.{did_you_mean(str(name), known)}")
    return warmup(rise, then) if rise else then
