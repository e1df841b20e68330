"""Numbers as users give them, checked before the core takes them as 32 bits."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np

from heterps.errors import InvalidInput

MOST_32_BITS = 2**32 - 1


def whole(what: str, value: Any, *, least: int = 0, most: int = MOST_32_BITS) -> None:
    """Refuses what is no `int` in [least, most]."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise InvalidInput(f"{what} is a whole number from {least} to {most}, not {value!r}")


def number(what: str, value: Any, *, most: float = math.inf) -> None:
    """Refuses what is no finite number in [0, most]."""
    if not _is_number(value) or not 0 <= value <= most or math.isinf(value):
        upper = "" if most == math.inf else f" and at most {most:g}"
        raise InvalidInput(f"{what} is a number of at least 0{upper}, not {value!r}")


def float32(what: str, value: Any) -> float:
    """A finite number of at least 0, as rows are computed with it.

    Raises:
        InvalidInput: for anything else, and for a number that only a float64 holds.
    """
    number(what, value)
    rounded = _rounded(value)
    if math.isinf(rounded):
        raise InvalidInput(f"{what} is a float32: at most {np.finfo(np.float32).max:.4g}, not {value!r}")
    return rounded


def share(what: str, value: Any) -> None:
    """Refuses what does not lie in [0, 1), also as a float32."""
    if not _is_number(value) or not 0 <= value < 1:
        raise InvalidInput(f"{what} lies in [0, 1), not {value!r}")
    if _rounded(value) == 1:
        raise InvalidInput(f"{what} lies in [0, 1) as a float32, which {value!r} is too near to 1 for")


def limit(what: str, value: Any) -> None:
    """Refuses what is neither a positive float32 nor infinite."""
    if not _is_number(value) or not value > 0:
        raise InvalidInput(f"{what} is positive (leave it out for none), not {value!r}")
    if value != math.inf and float32(what, value) == 0:
        raise InvalidInput(f"{what} is positive as a float32, which {value!r} is too small for")


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, Real) and not math.isnan(float(value))
    except OverflowError:  # an int that no float holds
        return False


def _rounded(value: Any) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))
