"""Dense gradients added up by replicas of one machine, where they lie: no messages, and nothing put side by side.

Each replica copies its gradients into a block of memory that all have mapped, and reads those of the others. Where they
lie goes over the mail once, and so does who cannot take part: then all use messages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from heterps._native import Circle
from heterps.ps.shared import Bytes
from heterps.runtime.cluster.layout import Seat
from heterps.runtime.cluster.mail import Mail
from heterps.runtime.cluster.messages import Message
from heterps.runtime.cluster.sums import MailSum, add_up
from heterps.runtime.later import Later

MOST_MEMBERS = 4
"""Of a circle: each reads all of the others' gradients. More of them send each other slices, less in all (assumed)."""
PATIENCE_MS = 200
"""Between two looks at whether the run goes on."""


class CircleSum:
    """Adds gradients up over the replicas of a stage; see `add_up`, whose results are the same to the bit."""

    def __init__(self, mail: Mail, seats: Sequence[Seat], me: Seat) -> None:
        self._mail, self._seats, self._me = mail, list(seats), me
        self._circle: Circle | None = None
        self._blocks: list[Bytes] | None = None
        """Those of the members; empty: there is no circle, None: nobody was asked yet."""
        self._sums = 0

    def __call__(self, step: int, parameters: Sequence[Tensor]) -> Later[None]:
        """Starts. Parameters have no gradients until the sums come, which they get then."""
        if not parameters:
            return Later(lambda: None)
        if self._blocks is None:
            self._blocks = self._meet(step, parameters)
            if self._blocks:
                self._circle = Circle(self._blocks, self._seats.index(self._me), [one.numel() for one in parameters])
        if self._circle is None:
            return add_up(step, parameters, MailSum(self._mail, self._seats, self._me))
        number, circle = self._sums, self._circle
        self._sums += 1
        own = [one.grad if one.grad is None else one.grad.detach().contiguous() for one in parameters]
        for one in parameters:
            one.grad = None
        began_s = time.monotonic()
        addresses = [0 if grad is None else grad.data_ptr() or 1 for grad in own]  # one without numbers has no address
        while not circle.put(addresses, PATIENCE_MS):
            self._mail.check(began_s, f"gradients of step {step}")
        return Later(lambda: self._take(circle, number, parameters, own), lambda: circle.wait(number, 0))

    def _take(self, circle: Circle, number: int, parameters: Sequence[Tensor], own: Sequence[Tensor | None]) -> None:
        began_s = time.monotonic()
        while not circle.wait(number, PATIENCE_MS):
            self._mail.check(began_s, f"gradients of sum {number}")
        sums = [torch.empty_like(one) if grad is None else grad for one, grad in zip(parameters, own, strict=True)]
        missing = circle.take(number, [one.data_ptr() for one in sums])
        for parameter, total, nobody in zip(parameters, sums, missing, strict=True):
            parameter.grad = None if nobody else total

    def _meet(self, step: int, parameters: Sequence[Tensor]) -> list[Bytes]:
        """The blocks of all members, if each has one; else none."""
        others = [seat for seat in self._seats if seat != self._me]
        plain = all(one.dtype == torch.float32 and one.is_cpu and one.is_contiguous() for one in parameters)
        able = plain and len(self._seats) <= MOST_MEMBERS and all(map(self._mail.is_near, others))
        lent = self._mail.lend(Circle.bytes([one.numel() for one in parameters])) if able else None
        place = None if lent is None else torch.tensor(lent[0])
        for seat in others:
            self._mail.send(seat, Message("circle", step, str(self._me.replica), {"place": place}))
        told = {seat: self._mail.take("circle", step, str(seat.replica)).tensors["place"] for seat in others}
        if lent is None or any(one is None for one in told.values()):
            return []
        found = {seat: one.tolist() for seat, one in told.items() if one is not None}
        return [lent[1] if seat == self._me else self._mail.lent(seat, tuple(found[seat])) for seat in self._seats]
