"""What replicas and the coordinator hand each other through files: the dense weights of a checkpoint.

The first replica of each stage writes `stage-N.pt` into a directory of the attempt, here or in storage behind a URL;
the coordinator joins them to one checkpoint of the usual format, which any engine can take up.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from heterps.runtime.contents import CheckpointFailed, read_dense, reading
from heterps.storage import Place, StorageFailed, place, remove


@dataclass(frozen=True, slots=True)
class Part:
    """Dense weights and the state of their optimizers, by parameter name."""

    dense: Mapping[str, Tensor]
    optimizer: Mapping[str, Mapping[str, Any]]


def write_part(directory: Place | str, stage: int, dense: Mapping[str, Tensor], optimizer: Mapping[str, Any]) -> None:
    """Writes the part of one stage."""
    written, folder = io.BytesIO(), place(directory)
    torch.save({"dense": dict(dense), "optimizer": dict(optimizer)}, written)
    try:
        if isinstance(folder, Path):
            folder.mkdir(parents=True, exist_ok=True)
        (folder / f"stage-{stage}.pt").write_bytes(written.getbuffer())
    except (OSError, StorageFailed) as error:
        reason = getattr(error, "strerror", None) or error
        raise CheckpointFailed(f"checkpoint part in {folder}: {reason}; earlier ones are intact") from error


def join_parts(directory: Place | str, stages: int) -> Part:
    """The parts of all stages as one."""
    dense: dict[str, Tensor] = {}
    optimizer: dict[str, Mapping[str, Any]] = {}
    for stage in range(stages):
        with reading(place(directory) / f"stage-{stage}.pt") as file:
            part = torch.load(file, map_location="cpu", weights_only=True)
        dense |= part["dense"]
        optimizer |= part["optimizer"]
    return Part(dense, optimizer)


def read_part(checkpoint: Place | str) -> Part:
    """The dense part of a checkpoint."""
    dense, training = read_dense(place(checkpoint))
    return Part(dense, training["optimizer"])


def remove_parts(directory: Place | str, job: str) -> None:
    """Removes all parts of a job, `.parts-JOB-…`, from the directory of its checkpoints."""
    folder, prefix = place(directory), f".parts-{job}-"
    if isinstance(folder, Path):
        found = {path.name for path in folder.glob(f"{prefix}*")}
    else:
        found = {name.partition("/")[0] for name in folder.files() if name.startswith(prefix)}
    for name in found:
        remove(folder / name)
