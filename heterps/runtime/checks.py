"""Checks of the numbers that users give."""

from __future__ import annotations

import math
from numbers import Integral, Real

from heterps.errors import InvalidInput


def check_whole(name: str, value: object, *, least: int) -> None:
    """Refuses all but whole numbers from `least` on; NumPy's are fine, 2.0 is not."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise InvalidInput(f"{name} is a whole number, at least {least}, not {value!r}")


def check_above_zero(name: str, value: object) -> None:
    """Refuses all but finite numbers above 0."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < math.inf:
        raise InvalidInput(f"{name} is a number above 0, not {value!r}")


def check_between(name: str, value: object, low: float, high: float) -> None:
    """Refuses all but numbers from `low` to `high`, these included."""
    if not isinstance(value, Real) or isinstance(value, bool) or not low <= float(value) <= high:
        raise InvalidInput(f"{name} is a number between {low:g} and {high:g}, not {value!r}")
