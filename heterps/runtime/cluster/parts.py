"""What replicas and the coordinator hand each other through files: the dense weights of a checkpoint.

The first replica of each stage writes `stage-N.pt` into a directory of the attempt; the coordinator joins them to one
checkpoint of the usual format, which any engine can take up.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from heterps.runtime.checkpoint import CheckpointFailed


@dataclass(frozen=True, slots=True)
class Part:
    """Dense weights and the state of their optimizers, by parameter name."""

    dense: Mapping[str, Tensor]
    optimizer: Mapping[str, Mapping[str, Any]]


def write_part(directory: Path, stage: int, dense: Mapping[str, Tensor], optimizer: Mapping[str, Any]) -> None:
    """Writes the part of one stage."""
    written = io.BytesIO()
    torch.save({"dense": dict(dense), "optimizer": dict(optimizer)}, written)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"stage-{stage}.pt").write_bytes(written.getbuffer())
    except OSError as error:
        raise CheckpointFailed(f"checkpoint part in {directory}: {error.strerror}; earlier ones are intact") from error


def join_parts(directory: Path, stages: int) -> Part:
    """The parts of all stages as one."""
    dense: dict[str, Tensor] = {}
    optimizer: dict[str, Mapping[str, Any]] = {}
    for stage in range(stages):
        part = torch.load(directory / f"stage-{stage}.pt", map_location="cpu", weights_only=True)
        dense |= part["dense"]
        optimizer |= part["optimizer"]
    return Part(dense, optimizer)


def read_part(checkpoint: Path) -> Part:
    """The dense part of a checkpoint."""
    try:
        training = torch.load(checkpoint / "training.pt", map_location="cpu", weights_only=True)
        return Part(load_file(checkpoint / "dense.safetensors"), training["optimizer"])
    except Exception as error:
        raise CheckpointFailed(f"checkpoint {checkpoint} cannot be read: {error}") from error
