"""What a recorder writes down, besides spans, and what a sink is. All times are seconds since the recorder's start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

from heterps.telemetry.ledger import Span

Kind = Literal["span", "count", "scalar", "event"]


@dataclass(frozen=True, slots=True)
class Count:
    """How far a counter has come. Counts are added up where they arise; a record is made a few times a second."""

    kind: ClassVar[Kind] = "count"
    t: float
    name: str
    total: float
    """Since the recorder's start."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value of a curve, such as the loss."""

    kind: ClassVar[Kind] = "scalar"
    t: float
    name: str
    value: float
    step: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened once; its fields hold nothing but what JSON can."""

    kind: ClassVar[Kind] = "event"
    t: float
    name: str
    fields: Mapping[str, Any]


Record = Span | Count | Scalar | Event


class Sink(Protocol):
    """Where records go. All calls come from one background thread; one that raises ends the sink, not the training."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """Kinds of records the sink wants; others are not kept for it."""

    def write(self, records: Sequence[Record]) -> None:
        """Takes records of its kinds, in the order they ended, and brings them to where they outlive the process."""

    def close(self) -> None:
        """Ends what was written."""


def plain(value: Any) -> Any:
    """A copy of `value` of nothing but dicts, lists, strings, numbers, booleans and None; the rest as text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(inner) for inner in value]
    if callable(tolist := getattr(value, "tolist", None)):  # NumPy's and PyTorch's
        return plain(tolist())
    return str(value)
