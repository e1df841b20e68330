"""The share of a step that one replica computes: micro-batches m with m mod replicas = its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from heterps.errors import InvalidInput
from heterps.models import Bags
from heterps.models.batch import Batch, batch_size
from heterps.runtime.stage import Step


@dataclass(frozen=True, slots=True)
class Share(Step):
    """Some micro-batches of a step, joined; `bounds` are of these, and losses are weighted as parts of the whole."""

    numbers: tuple[int, ...]
    """Of the micro-batches, among those of the whole step."""
    of_samples: int
    of_micro_batches: int

    @property
    def micro_batches(self) -> int:
        """Of the whole step."""
        return self.of_micro_batches

    @property
    def samples(self) -> int:
        """Of the whole batch."""
        return self.of_samples


def share_of(
    number: int, batch: Batch, reads: tuple[str, ...], *, micro_batches: int, replica: int, replicas: int
) -> Share:
    """What a replica has of a batch; it may be nothing if there are fewer micro-batches than replicas."""
    size = batch_size(batch)
    if size == 0:
        raise InvalidInput("a batch has at least one sample, and this one has none")
    parts = max(1, min(micro_batches, size))
    bounds = [size * part // parts for part in range(parts + 1)]
    numbers = tuple(range(replica, parts, replicas))
    stretches = [(bounds[part], bounds[part + 1]) for part in numbers]
    whole = {name: _joined(batch[name], stretches) for name in reads}
    own = [0]
    for start, stop in stretches:
        own.append(own[-1] + stop - start)
    return Share(number, whole, own, numbers, size, parts)


def _joined(value: Any, stretches: list[tuple[int, int]]) -> Any:
    parts = [value[start:stop] for start, stop in stretches] or [value[0:0]]
    if len(parts) == 1:
        return parts[0]
    return Bags.join(parts) if isinstance(value, Bags) else torch.cat(parts)
