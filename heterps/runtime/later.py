"""A result that is on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Later(Generic[Result]):
    """What somebody else is working on."""

    get: Callable[[], Result]
    """Waits for it; to be called once."""
    ready: Callable[[], bool] = lambda: True
    """Whether `get` would not wait."""
