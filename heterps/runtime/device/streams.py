"""The streams that a device's copies and recordings use.

PyTorch hands out the same few streams again and again. A stream that is being recorded into a graph must not be used by
anybody else, so each has one purpose here, for as long as the process lives.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Streams:
    """Of one device."""

    bring: Any
    """Copies from the host."""
    fetch: Any
    """Copies to the host."""
    record: Any
    """Recording of graphs."""


@cache
def streams_of(device: torch.device) -> Streams:
    """The device's streams, made when they are first asked for."""
    made: list[Any] = []
    while len(made) < 3:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        if all(stream != other for other in made):
            made.append(stream)
    return Streams(*made)
