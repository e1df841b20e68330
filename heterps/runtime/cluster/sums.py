"""Dense gradients added up over the replicas of a stage.

`MailSum` goes over the mail: encrypted, only for holders of the keys, and through shared memory within a machine.
`CollectiveSum` is torch.distributed's all-reduce: NCCL between GPUs, or gloo; it has neither keys nor encryption.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor
from torch import distributed as dist

from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.mail import Mail
from heterps.runtime.cluster.messages import Message
from heterps.runtime.later import Later

_dist: Any = dist  # its types leave out what is used here


class Sum(Protocol):
    """Adds up a buffer over the members of a group; all call it for the same steps."""

    device: torch.device
    """Where the buffer has to be."""

    def __call__(self, step: int, buffer: Tensor) -> Later[Tensor]:
        """Starts. The sum is the same for all to the bit; the buffer is the group's from now on."""
        ...


class MailSum:
    """Every member adds up one slice of the buffer, in the order of members, and sends it to the others.

    Each sends and receives 2·(n-1)/n of the buffer, the least there is. Two members send all of it, which is as much,
    and need not wait for a second message.
    """

    device = torch.device("cpu")

    def __init__(self, mail: Mail, seats: Sequence[Seat], me: Seat) -> None:
        self._mail, self._seats, self._me = mail, seats, me

    def __call__(self, step: int, buffer: Tensor) -> Later[Tensor]:
        """See `Sum`; of more than two members, the sum is called ready when their parts are here."""
        count = len(self._seats)
        slices = [buffer[len(buffer) * k // count : len(buffer) * (k + 1) // count] for k in range(count)]
        for seat, part in zip(self._seats, slices, strict=True):
            self._send(seat, step, "sum", buffer if count == 2 else part)
        keys = [("sum", step, str(seat.replica)) for seat in self._seats if seat != self._me]
        return Later(
            lambda: self._added(step, buffer) if count == 2 else self._joined(step, buffer, slices),
            lambda: all(map(self._mail.there, keys)),
        )

    def _added(self, step: int, own: Tensor) -> Tensor:
        """The members' parts added up, in memory of its own: `own` may still be on its way to another."""
        parts = [own if seat == self._me else self._take(seat, step, "sum") for seat in self._seats]
        total = torch.add(parts[0], parts[1])
        for part in parts[2:]:
            total += part
        return total

    def _joined(self, step: int, buffer: Tensor, slices: Sequence[Tensor]) -> Tensor:
        own = slices[self._me.replica]
        total = self._added(step, own)
        own.copy_(total)
        for seat in self._seats:  # not from the buffer: whoever clips gradients writes to it while this is on its way
            self._send(seat, step, "summed", total)
        for seat, part in zip(self._seats, slices, strict=True):
            if seat != self._me:
                part.copy_(self._take(seat, step, "summed"))
        return buffer

    def _send(self, to: Seat, step: int, kind: str, part: Tensor) -> None:
        if to != self._me:
            self._mail.send(to, Message(kind, step, str(self._me.replica), {"x": part}))

    def _take(self, seat: Seat, step: int, kind: str) -> Tensor:
        part = self._mail.take(kind, step, str(seat.replica)).tensors["x"]
        assert part is not None
        return part


class CollectiveSum:
    """All-reduce by torch.distributed, in a group that meets at a store which the first member hosts."""

    def __init__(self, host: str, device: torch.device, *, backend: str, timeout_s: float) -> None:
        """Gets ready on this machine, `host`; `backend` is gloo or nccl; waits end after `timeout_s`."""
        self._host, self._backend, self._timeout = host, backend, timedelta(seconds=timeout_s)
        self.device = device if backend == "nccl" else torch.device("cpu")
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
        if self._backend == "nccl":
            self._group = _dist.ProcessGroupNCCL(self._store, rank, size, self._timeout)
            return
        options = _dist.ProcessGroupGloo._Options()
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=self._host)]
        options._timeout = self._timeout
        self._group = _dist.ProcessGroupGloo(self._store, rank, size, options)

    def __call__(self, step: int, buffer: Tensor) -> Later[Tensor]:
        """See `Sum`."""
        going = self._group.allreduce([buffer])

        def finish() -> Tensor:
            going.wait()
            return buffer

        return Later(finish, going.is_completed)


def add_up(step: int, parameters: Sequence[Tensor], sum_: Sum) -> Later[None]:
    """Starts to add gradients up over the members. Parameters have none until the sums come, which they get then.

    One that no member has a gradient of has none. All travel in one buffer, behind it for each a mark of who has it.
    """
    if not parameters:
        return Later(lambda: None)
    kind = torch.float64 if any(one.dtype == torch.float64 for one in parameters) else torch.float32
    marks = torch.tensor([0.0 if one.grad is None else 1.0 for one in parameters], dtype=kind, device=sum_.device)
    flat = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    buffer = torch.cat([*(grad.detach().reshape(-1).to(sum_.device, kind) for grad in flat), marks])
    for one in parameters:
        one.grad = None
    added = sum_(step, buffer)

    def finish() -> None:
        total, at = added.get(), 0
        for one, mark in zip(parameters, total[len(total) - len(parameters) :].tolist(), strict=True):
            part = total[at : at + one.numel()].reshape(one.shape)
            at += one.numel()
            one.grad = part.to(one.device, one.dtype) if mark > 0 else None

    return Later(finish, added.ready)
