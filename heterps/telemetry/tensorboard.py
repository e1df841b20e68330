"""Scalars for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from heterps.errors import InvalidInput
from heterps.telemetry.records import Kind, Record, Scalar


class TensorBoard:
    """Writes scalars as TensorBoard's event files into a directory; needs `tensorboard`, an optional dependency."""

    kinds: frozenset[Kind] = frozenset(("scalar",))

    def __init__(self, directory: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InvalidInput(
                f"telemetry for TensorBoard needs the package tensorboard ({error}); install 'heterps[tensorboard]'"
            ) from error
        self._directory = Path(directory)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._summary = SummaryWriter(str(directory))
        except OSError as error:
            raise InvalidInput(
                f"cannot write telemetry to {directory}: {error.strerror}; choose a directory that can be written"
            ) from error

    def write(self, records: Sequence[Record]) -> None:
        """Adds a point to each curve."""
        for record in records:
            if isinstance(record, Scalar):
                self._summary.add_scalar(record.name, record.value, record.step)
        self._summary.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._summary.close()

    def __str__(self) -> str:
        return str(self._directory)
