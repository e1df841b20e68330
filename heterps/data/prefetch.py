"""Reading and decoding beside training."""

from __future__ import annotations

from heterps.data.ahead import Ahead
from heterps.data.reader import PartReader, Read, Reader
from heterps.errors import InvalidInput


class _Prefetched(Reader):
    def __init__(self, reader: Reader, depth: int) -> None:
        self._reader = reader
        stop = reader.stop if isinstance(reader, PartReader) else None
        self._reads: Ahead[Read] = Ahead(reader, depth=depth, stop=stop)

    @property
    def skipped(self) -> int:
        return self._reader.skipped

    def __next__(self) -> Read:
        return next(self._reads)

    def close(self) -> None:
        self._reads.close()


def prefetch(reader: Reader, *, depth: int = 4) -> Reader:
    """The same reads, made by a thread at most `depth` batches ahead; another one decodes the next part meanwhile.

    Memory is bounded by `depth` batches and two parts (one given out, one ready or in the making). Errors surface where
    their batch would have come. Positions travel with the batches, so what was read ahead does not count as read.
    The reader belongs to the result from now on: closing this closes it.
    """
    if depth < 1:
        raise InvalidInput(f"prefetch: depth is at least 1, not {depth}")
    if isinstance(reader, PartReader):
        reader.read_ahead()
    return _Prefetched(reader, depth)
