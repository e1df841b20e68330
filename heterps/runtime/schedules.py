"""Learning-rate schedules: functions from the number of a step to a factor of the initial learning rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

from heterps.errors import InvalidInput, did_you_mean
from heterps.runtime.checks import check_above_zero, check_between, check_whole

Schedule = Callable[[int], float]


def warmup(steps: int, then: Schedule | None = None) -> Schedule:
    """Rises in a line to 1 over the first `steps` steps, then goes on with `then` (from its step 0), or stays."""
    check_whole("warmup: steps", steps, least=0)

    def factor(step: int) -> float:
        if step < steps:
            return (step + 1) / steps
        return 1.0 if then is None else then(step - steps)

    return factor


def cosine(steps: int, *, least: float = 0.0) -> Schedule:
    """Falls from 1 to `least` along half a cosine over `steps` steps, then stays there."""
    _check_fall("cosine", steps, least)
    return lambda step: least + (1 - least) * (1 + math.cos(math.pi * min(step, steps) / steps)) / 2


def linear(steps: int, *, least: float = 0.0) -> Schedule:
    """Falls from 1 to `least` in a line over `steps` steps, then stays there."""
    _check_fall("linear", steps, least)
    return lambda step: 1 - (1 - least) * min(step, steps) / steps


def exponential(*, gamma: float, every: int = 1) -> Schedule:
    """Times `gamma` after each `every` steps."""
    check_above_zero("exponential: gamma", gamma)
    check_whole("exponential: every", every, least=1)
    return lambda step: float(gamma ** (step // every))


def _check_fall(name: str, steps: object, least: object) -> None:
    check_whole(f"{name}: steps", steps, least=1)
    check_between(f"{name}: least", least, 0, 1)


_KINDS: dict[str, Callable[..., Schedule]] = {"cosine": cosine, "linear": linear, "exponential": exponential}


def make_schedule(spec: Mapping[str, Any] | str | None) -> Schedule | None:
    """From a job file: {name: cosine | linear | exponential | constant, warmup_steps: 100, and its own options}."""
    if spec is None:
        return None
    options: dict[str, Any] = {"name": spec} if isinstance(spec, str) else dict(spec)
    name, rise = options.pop("name", "constant"), options.pop("warmup_steps", 0)
    kinds = ("constant", *_KINDS)
    if name not in kinds:
        raise InvalidInput(f"schedule is one of {', '.join(kinds)}, not {name!r}.{did_you_mean(str(name), kinds)}")
    check_whole("schedule: warmup_steps", rise, least=0)
    _check_options(name, options)
    try:
        then = _KINDS[name](**options) if name in _KINDS else None
    except InvalidInput as error:
        raise InvalidInput(f"schedule {error}") from None
    return warmup(rise, then) if rise else then


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuses what the schedule does not know, and asks for what it needs."""
    known = inspect.signature(_KINDS[name]).parameters if name in _KINDS else {}
    for key in options:
        if key not in known:
            hint = did_you_mean(str(key), ["name", "warmup_steps", *known])
            raise InvalidInput(f"schedule {name} has no option {key!r}.{hint}")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in options:
            raise InvalidInput(f"schedule {name} needs {key}: add it")
