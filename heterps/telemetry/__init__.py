"""What a run does and how long it takes: spans, counts, scalars and events, their sinks, and the progress line."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from heterps.telemetry.chrome import ChromeTrace
from heterps.telemetry.jsonl import JsonLines, read_jsonl
from heterps.telemetry.ledger import WORK, Span, Total
from heterps.telemetry.recorder import Recorder
from heterps.telemetry.records import Count, Event, Record, Scalar, Sink
from heterps.telemetry.tensorboard import TensorBoard

if TYPE_CHECKING:
    from heterps.telemetry.metrics import Auc
    from heterps.telemetry.progress import Progress

__all__ = [
    "WORK",
    "Auc",
    "ChromeTrace",
    "Count",
    "Event",
    "JsonLines",
    "Progress",
    "Record",
    "Recorder",
    "Scalar",
    "Sink",
    "Span",
    "TensorBoard",
    "Total",
    "read_jsonl",
]

_WHERE = {"Auc": "heterps.telemetry.metrics", "Progress": "heterps.telemetry.progress"}


def __getattr__(name: str) -> Any:
    """Imports what needs PyTorch or Rich when it is asked for, so that reading a run's telemetry needs neither."""
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'heterps.telemetry' has no attribute {name!r}")
