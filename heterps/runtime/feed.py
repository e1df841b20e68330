"""The batches of a run, wherever they come from: a source, or any iterable of batches. Each with its position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from heterps.data import Read, prefetch
from heterps.data.source import Passes
from heterps.errors import InvalidInput
from heterps.models.batch import Bags, Batch

if TYPE_CHECKING:  # a plain run needs no sockets
    from heterps.runtime.cluster.reading import Crew


class Feed(AbstractContextManager["Feed"]):
    """Reads batches in the background, where the data is a source; takes up at a position."""

    shared = False
    """Whether the data is read together with others, and batches hold only the columns that are needed here."""

    def __init__(
        self,
        data: Any,
        *,
        batch_size: int,
        epochs: int | None,
        seed: int,
        position: Any = None,
        shuffle: bool = True,
        crew: Crew | None = None,
    ) -> None:
        """Opens the data.

        Args:
            data: a `heterps.data.Source`, or batches: dictionaries of tensors, in an iterable.
            batch_size: samples of a step, for a source; other batches are taken as they are.
            epochs: passes over the data; None: without end.
            seed: of shuffling.
            position: of an earlier feed of the same data; None: the beginning.
            shuffle: whether a source shuffles.
            crew: with whom to read a source of ours; other data is read whole by everybody.
        """
        self._reader: Any = None
        if hasattr(data, "reader"):
            more: dict[str, Any] = {}
            if crew is not None and isinstance(data, Passes):
                self.shared, more = True, {"columns": crew.columns(data.columns), "through": crew.share}
            reader = data.reader(
                batch_size=batch_size, epochs=epochs, seed=seed, position=position, shuffle=shuffle, **more
            )
            self._reader = prefetch(reader)
            self._reads: Iterator[Read] = iter(self._reader)
        elif isinstance(data, Iterable):
            self._reads = _plain(data, epochs, position)
        else:
            raise InvalidInput(f"data is a heterps.data source or an iterable of batches, not {type(data).__name__}")

    def __iter__(self) -> Iterator[Read]:
        return self._reads

    @property
    def skipped(self) -> int:
        """Malformed rows that were passed over."""
        return self._reader.skipped if self._reader is not None else 0

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()


def _plain(batches: Iterable[Any], epochs: int | None, position: Any) -> Iterator[Read]:
    """Batches one by one; those before the position are read and left out. An iterator can be passed over only once."""
    epoch, skip = (position["epoch"], position["batch"]) if position else (0, 0)
    if epoch and iter(batches) is batches:
        raise InvalidInput("these batches can be read only once, and the run is resumed in a later epoch")
    while epochs is None or epoch < epochs:
        number = 0
        for batch in batches:
            number += 1
            if number > skip:
                yield Read(_checked(batch), {"epoch": epoch, "batch": number})
        if number == 0 or iter(batches) is batches:
            return
        epoch, skip = epoch + 1, 0


def _checked(batch: Any) -> Batch:
    if not isinstance(batch, Mapping):
        raise InvalidInput(f"a batch is a dictionary of tensors, not {type(batch).__name__}")
    made = {name: torch.as_tensor(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}
    for name, value in made.items():
        if not isinstance(value, torch.Tensor | Bags):
            raise InvalidInput(f"batch[{name!r}] is a tensor, an array or Bags, not {type(value).__name__}")
    return made
