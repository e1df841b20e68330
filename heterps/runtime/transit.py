"""Tensors that a GPU is still writing to the host's memory: whoever needs one waits for it, and nobody else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """A tensor in pinned memory that a GPU is still writing."""

    tensor: Tensor
    event: Any

    def wait(self) -> Tensor:
        """The tensor, when it is written."""
        self.event.synchronize()
        return self.tensor


def arrived(value: Tensor | OnItsWay | None) -> Tensor | None:
    """The tensor, waited for if it is still on its way."""
    return value.wait() if isinstance(value, OnItsWay) else value


def leaving(value: Tensor) -> Tensor | OnItsWay:
    """A tensor as float32 on the host; one of a GPU is sent there, after what its current stream does."""
    if not value.is_cuda:
        return value.to("cpu", torch.float32)
    into = torch.empty(value.shape, dtype=torch.float32, pin_memory=True)
    stream = torch.cuda.current_stream(value.device)
    with torch.cuda.device(value.device):
        into.copy_(value, non_blocking=True)
        return OnItsWay(into, stream.record_event())
