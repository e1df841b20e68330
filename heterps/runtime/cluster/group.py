"""The replicas of one stage as a group of torch.distributed: their gradients are summed by all-reduce."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

_dist: Any = dist  # its types leave out what is used here


class Group:
    """A group of `size` members that meet at a store, which the first one hosts; each attempt makes new ones."""

    def __init__(self, host: str, *, timeout_s: float) -> None:
        """Gets ready on this machine, `host`; waits of the group end after `timeout_s`."""
        self._host, self._timeout = host, timedelta(seconds=timeout_s)
        self._store: Any = None
        self._group: Any = None

    def host_store(self) -> tuple[str, int]:
        """Makes the store here, and says where it is."""
        self._store = _dist.TCPStore(self._host, 0, None, True, wait_for_workers=False, timeout=self._timeout)
        return self._host, self._store.port

    def meet(self, where: tuple[str, int], *, rank: int, size: int) -> None:
        """Returns when all members are there."""
        if self._store is None:
            self._store = _dist.TCPStore(*where, None, False, timeout=self._timeout)
        options = _dist.ProcessGroupGloo._Options()
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = self._timeout
        self._group = _dist.ProcessGroupGloo(self._store, rank, size, options)

    def summed(self, tensors: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor | None]:
        """Gradients added up over the members; one that no member has stays None.

        All travel in one buffer, behind it for each a mark of who has it.
        """
        marks = torch.tensor([0.0 if tensor is None else 1.0 for tensor in tensors])
        flat = [torch.zeros_like(one) if tensor is None else tensor for tensor, one in zip(tensors, like, strict=True)]
        buffer = torch.cat([*(tensor.detach().reshape(-1).to("cpu", torch.float32) for tensor in flat), marks])
        self._group.allreduce([buffer]).wait()
        found: list[Tensor | None] = []
        at = 0
        for one, mark in zip(like, buffer[len(buffer) - len(like) :].tolist(), strict=True):
            part = buffer[at : at + one.numel()].reshape(one.shape)
            at += one.numel()
            found.append(part.to(one.device, one.dtype) if mark > 0 else None)
        return found
