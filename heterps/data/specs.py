"""Sources from a job's `data` mapping."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from heterps.data.criteo import Criteo
from heterps.data.delimited import Csv
from heterps.data.parquet import Parquet
from heterps.data.source import Source
from heterps.data.synthetic import Synthetic
from heterps.errors import InvalidInput, did_you_mean

_KINDS: tuple[type[Source], ...] = (Synthetic, Criteo, Parquet, Csv)
SOURCES: dict[Any, Any] = {kind.name: kind for kind in _KINDS}

_INTERNAL = {"splits", "memory"}


def make_source(spec: Mapping[str, Any] | Source) -> Source:
    """The source that a job's `data` names, as `{source: criteo, path: day_*.gz}`; a source is given back as it is.

    The keys beside `source` are the options of that class: `Synthetic`, `Criteo`, `Parquet` or `Csv`.
    """
    if not isinstance(spec, Mapping):
        if not hasattr(spec, "reader"):
            raise InvalidInput(f"data is a mapping with source: {', '.join(SOURCES)}, not {spec!r}")
        return spec
    name = spec.get("source")
    if name not in SOURCES:
        hint = did_you_mean(str(name), SOURCES)
        raise InvalidInput(f"data: source is one of {', '.join(SOURCES)}, not {name!r}.{hint}")
    kind = SOURCES[name]
    known = [field for field in dataclasses.fields(kind) if field.init and field.name not in _INTERNAL]
    names = [field.name for field in known]
    for key in spec:
        if key != "source" and key not in names:
            hint = did_you_mean(str(key), names)
            raise InvalidInput(f"data: {name} has no option {key!r}.{hint} Its options: {', '.join(names)}")
    for field in known:
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if required and field.name not in spec:
            raise InvalidInput(f"data: {name} needs {field.name}")
    source: Source = kind(**{key: value for key, value in spec.items() if key != "source"})
    return source
