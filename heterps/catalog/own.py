"""Entries that users add: a YAML file of `types`, each with the fields of an entry under its name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from heterps.catalog.entry import NAME_PATTERN, Entry, Written
from heterps.catalog.parts import find_gpu
from heterps.documents import Document, FrozenMap
from heterps.errors import InvalidInput

NEEDED = ("device", "peak_fp32_flops_per_s", "memory_bytes_per_s")
RATES = (
    "peak_fp32_flops_per_s", "peak_bf16_flops_per_s", "peak_fp16_flops_per_s", "memory_bytes_per_s", "bus_bytes_per_s",
)  # fmt: skip


class OwnFile(Document):
    """The file as written."""

    types: FrozenMap[Written] = Field(description="name -> entry")

    @model_validator(mode="after")
    def _names_are_words(self) -> Self:
        for name in self.types:
            if not re.fullmatch(NAME_PATTERN, name):
                raise ValueError(
                    f"types names {name!r}; a name is made of lower-case letters and digits, joined by '-', '.' or '_'"
                )
        return self


def read_own(path: Path) -> list[Entry]:
    """The entries of a file; `InvalidInput` names the file, the key and what is wrong."""
    return [_complete(name, written, path) for name, written in OwnFile.load(path).types.items()]


def _complete(name: str, written: Written, path: Path) -> Entry:
    """Fills in what the GPU's model settles; what is written goes before."""
    part = find_gpu(written.accelerator) if written.accelerator is not None else None
    fields = {**(part.fields() if part is not None else {}), **written.model_dump(exclude_unset=True), "name": name}
    if part is not None:
        fields["accelerator"] = part.model
        if written.model_fields_set & {*RATES} and not written.model_fields_set & {"rates_source", "rates_date"}:
            fields.update(rates_source="own", rates_date=None)
    for key in NEEDED:
        if fields.get(key) is None:
            raise InvalidInput(
                f"{path}: types.{name}.{key} is missing ({key}: {Written.model_fields[key].description}); "
                "only the models of GPUs that the catalog knows settle it"
            )
    return Entry(**fields)
