"""Records as a file of JSON lines: one object a line, for programs to read, written as training goes on.

Every object has `t` (seconds since the recorder's start), `kind` and `name`. The rest depends on the kind, and a field
that a record does not have is left out:

| kind | fields |
| --- | --- |
| `span` | `duration_s`; `stage`, `step`, `micro_batch`. `t` is when it began; it is written when it ends |
| `count` | `total`, of all that was added since the start; written when it has changed, a few times a second |
| `scalar` | `value`, `step` |
| `event` | `fields`, an object. The first is `start` with `format` and `unix_s`, the time of day; the last is `end` |

Numbers that JSON does not know are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`. A file without an `end` is of a
process that was killed or still runs; its last line may be torn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from heterps.errors import InvalidInput
from heterps.telemetry.records import Count, Event, Kind, Record, Scalar

_DIGITS = 7
"""Of times: 0.1 µs, the order of what a clock's call costs."""


class JsonLines:
    """Writes records to a file.

    Args:
        path: the file; folders are made.
        append: continue the file of an earlier run, less a torn last line. The times of each run start at its `start`.
    """

    kinds: frozenset[Kind] = frozenset(("span", "count", "scalar", "event"))

    def __init__(self, path: str | Path, *, append: bool = False) -> None:
        self._path = Path(path)
        self._file = open_for_writing(self._path, append=append)
        if append:
            _cut_torn_line(self._file)

    def write(self, records: Sequence[Record]) -> None:
        """Writes whole lines at once, so that a killed process rarely leaves a torn one."""
        self._file.write("".join([encode(to_dict(record)) + "\n" for record in records]).encode())
        self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __str__(self) -> str:
        return str(self._path)


def to_dict(record: Record) -> dict[str, Any]:
    """A record as it stands in the file."""
    line: dict[str, Any] = {"t": round(record.t, _DIGITS), "kind": record.kind, "name": record.name}
    if isinstance(record, Count):
        line["total"] = record.total
    elif isinstance(record, Scalar):
        line |= {"value": record.value, "step": record.step}
    elif isinstance(record, Event):
        line["fields"] = record.fields
    else:
        line["duration_s"] = round(record.duration_s, _DIGITS)
        for key in ("stage", "step", "micro_batch"):
            if (value := getattr(record, key)) is not None:
                line[key] = value
    return line


def read_jsonl(path: str | Path) -> Iterator[dict[str, Any]]:
    """The objects of a file that `JsonLines` wrote, in its order; a torn last line is left out.

    Values of scalars are numbers again, NaN and infinities too.

    Raises:
        InvalidInput: there is no such file, or a line before the last is not a JSON object.
    """
    try:
        file = Path(path).open("rb")  # noqa: SIM115
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error
    with file:
        for number, line in enumerate(file, start=1):
            try:
                found = json.loads(line)
                if not isinstance(found, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                if file.read(1):
                    raise InvalidInput(f"{path}, line {number}: must be a JSON object: {error}") from error
                return
            if found.get("kind") == "scalar":
                found["value"] = float(found["value"])
            yield found


_strict = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=str)


def encode(value: Any) -> str:
    """JSON in one line, with the numbers that JSON does not know as strings."""
    try:
        return _strict.encode(value)
    except ValueError:
        return _strict.encode(_named(value))


def _named(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _named(inner) for key, inner in value.items()}
    return [_named(inner) for inner in value] if isinstance(value, list | tuple) else value


def open_for_writing(path: Path, *, append: bool = False) -> IO[bytes]:
    """The file, opened now rather than in the background, so that a wrong path is an error before training starts."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("r+b" if append and path.exists() else "wb")
    except OSError as error:
        raise InvalidInput(f"cannot write telemetry to {path}: {error.strerror}; choose a path that can") from error


def _cut_torn_line(file: IO[bytes]) -> None:
    """Moves to the end of the last whole line, looking back from the end of the file, and cuts what is after it."""
    end = file.seek(0, 2)
    block = 1 << 16
    while end:
        start = max(0, end - block)
        file.seek(start)
        if (newline := file.read(end - start).rfind(b"\n")) >= 0:
            end = start + newline + 1
            break
        end = start
    file.seek(end)
    file.truncate()
