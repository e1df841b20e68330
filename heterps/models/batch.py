"""A batch: named tensors of the same number of samples, among them the multi-valued slots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch
from torch import Tensor

from heterps.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Bags:
    """Ids of multi-valued slots: any number of ids for each sample and slot.

    The bag of sample b and slot s is number b·slots + s and holds ids[offsets[n] : offsets[n + 1]].
    """

    ids: Tensor
    """int64 [N]."""
    offsets: Tensor
    """int64 [samples · slots + 1], from 0 to N."""
    slots: int = 1

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.offsets.ndim != 1 or len(self.offsets) == 0 or self.slots < 1:
            raise InvalidInput("bags: ids and offsets have one axis, offsets at least one entry, slots is at least 1")
        if (len(self.offsets) - 1) % self.slots:
            raise InvalidInput(f"bags: {len(self.offsets) - 1} bags are no multiple of {self.slots} slots")
        if int(self.offsets[0]) != 0 or int(self.offsets[-1]) != len(self.ids):
            raise InvalidInput(f"bags: offsets run from 0 to {len(self.ids)}, the number of ids")

    def __len__(self) -> int:
        return (len(self.offsets) - 1) // self.slots

    def __getitem__(self, samples: slice) -> Bags:
        """The bags of a stretch of samples (step 1)."""
        start, stop, step = samples.indices(len(self))
        if step != 1:
            raise InvalidInput(f"bags are cut into stretches of samples; the step is 1, not {step}")
        cut = self.offsets[start * self.slots : max(start, stop) * self.slots + 1]
        return Bags(self.ids[int(cut[0]) : int(cut[-1])], cut - cut[0], self.slots)

    @classmethod
    def join(cls, parts: Sequence[Bags]) -> Bags:
        """The samples of all parts, one after the other; all have the same slots."""
        if len({part.slots for part in parts}) != 1:
            raise InvalidInput("bags to join have the same number of slots, and there is at least one")
        offsets, total = [parts[0].offsets], len(parts[0].ids)
        for part in parts[1:]:
            offsets.append(part.offsets[1:] + total)
            total += len(part.ids)
        return cls(torch.cat([part.ids for part in parts]), torch.cat(offsets), parts[0].slots)


Value: TypeAlias = Tensor | Bags
Batch: TypeAlias = dict[str, Value]


def batch_size(batch: Mapping[str, Value]) -> int:
    """Samples of a batch; an `InvalidInput` if its entries do not agree, or it has none."""
    sizes = {name: len(value) for name, value in batch.items()}
    if not sizes:
        raise InvalidInput("a batch names at least one tensor")
    if len(set(sizes.values())) > 1:
        raise InvalidInput(f"the entries of a batch have the same number of samples, not {sizes}")
    return next(iter(sizes.values()))


def cut(batch: Mapping[str, Value], parts: int) -> list[Batch]:
    """Micro-batches: at most `parts` stretches of nearly equal size, none of them empty. Nothing is copied."""
    size = batch_size(batch)
    parts = max(1, min(parts, size))
    bounds = [size * part // parts for part in range(parts + 1)]
    return [{name: value[start:stop] for name, value in batch.items()} for start, stop in pairwise(bounds)]
