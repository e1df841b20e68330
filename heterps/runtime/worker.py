"""What a stage does next: it takes what comes, backward first, and never runs further ahead than it may."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, SupportsFloat

from heterps._native import Inbox
from heterps.runtime.later import Later
from heterps.runtime.placement import StageSpec
from heterps.runtime.randomness import Around
from heterps.runtime.schedules import Schedule
from heterps.runtime.stage import Stage, Step, Tensors
from heterps.runtime.transit import OnItsWay
from heterps.telemetry import Recorder


@dataclass(frozen=True, slots=True)
class Fed:
    """A batch for this stage, and what prepares it: a future, or of a stage that only starts things what it gave."""

    step: Step
    prepared: Any


@dataclass(frozen=True, slots=True)
class Forward:
    """Activations of a micro-batch, from the previous stage."""

    step: int
    micro_batch: int
    tensors: Tensors


@dataclass(frozen=True, slots=True)
class Backward:
    """Gradients of a micro-batch, from the next stage; some may still be on their way from a GPU."""

    step: int
    micro_batch: int
    tensors: Tensors

    def ready(self) -> bool:
        """True when no gradient has to be waited for."""
        return all(not isinstance(grad, OnItsWay) or grad.event.query() for grad in self.tensors.values())

    def wait(self) -> None:
        """Returns when all gradients are there."""
        for grad in self.tensors.values():
            if isinstance(grad, OnItsWay):
                grad.wait()


Message = Fed | Forward | Backward


class Hub(Protocol):
    """What a worker needs of its pipeline."""

    recorder: Recorder
    schedule: Schedule | None

    def send(self, stage: int, message: Forward | Backward) -> None:
        """Hands tensors to a neighbouring stage."""
        ...

    def applied(self, stage: int, step: Step, loss: SupportsFloat | None) -> None:
        """A stage has updated its weights for a step."""
        ...

    def reduce(self, step: int, stage: Stage) -> Later[float]:
        """Starts to make a stage's gradients those of the whole step; what they are multiplied by comes when they are.

        Where that is not at once, the stage has none meanwhile, and may gather those of the next step.
        """
        ...

    def fail(self, error: BaseException, stage: StageSpec) -> None:
        """A stage raised."""
        ...


def _nothing(step: Step, micro_batch: int) -> AbstractContextManager[object]:
    return nullcontext()


class Worker:
    """Runs one stage, in the thread of a `Runner`.

    A forward may start when its batch and its activations are there and at most `staleness` earlier steps are not
    applied yet. Backward goes before forward, so that what is in flight stays little. A step is applied when the
    backward of its last micro-batch is done and the gradients of its other replicas have come; where staleness allows
    it, the next step begins before that.
    """

    def __init__(
        self,
        stage: Stage,
        pipeline: Hub,
        *,
        first_step: int,
        staleness: int,
        around: Around | None = None,
    ) -> None:
        """Takes a stage over; each forward happens within `around`."""
        self.stage = stage
        self._pipeline, self._around = pipeline, around or _nothing
        self._staleness = staleness
        self._applied = first_step  # steps before this one
        self._gone_back = first_step  # those whose backward is done
        self._next = (first_step, 0)
        self._fed: dict[int, Fed] = {}
        self._arrived: dict[tuple[int, int], Tensors] = {}
        self._returned: dict[tuple[int, int], Backward] = {}
        self._undone: dict[int, int] = {}  # micro-batches of a step without a backward
        self._reducing: tuple[Step, Later[float]] | None = None
        self._applying: deque[tuple[Step, SupportsFloat | None]] = deque()

    def connect(self, inbox: Inbox) -> None:
        """Tells what wakes the thread that calls `work`."""
        self.stage.connect(inbox, self._pipeline.recorder)

    def take(self, message: Message) -> None:
        """Notes what has come."""
        if isinstance(message, Fed):
            self._fed[message.step.number] = message
            self._undone[message.step.number] = message.step.parts
        elif isinstance(message, Forward):
            self._arrived[message.step, message.micro_batch] = message.tensors
        else:
            self._returned[message.step, message.micro_batch] = message

    def work(self) -> bool:
        """Does one thing, if there is one to do; false if not."""
        if self._applying and self._finish_applying():
            return True
        if self._reducing is not None and self._reducing[1].ready():
            self._update_late()
            return True
        returned = self._returned.get(self._next_backward())
        if returned is not None and (self.stage.only_starts or returned.ready() or not self._may_go_forward()):
            self._backward(returned)
            return True
        if self._may_go_forward():
            self._forward()
            return True
        if self._reducing is not None:
            self._update_late()
            return True
        return False

    def _next_backward(self) -> tuple[int, int]:
        """In the order of forwards, whoever of several replicas of the next stage was the first."""
        fed = self._fed.get(self._gone_back)
        return self._gone_back, fed.step.parts - self._undone[self._gone_back] if fed is not None else 0

    def _may_go_forward(self) -> bool:
        step, _ = self._next
        if step not in self._fed or step - self._applied > self._staleness:
            return False
        if not self.stage.is_prepared(self._fed[step].prepared):
            return False
        return self.stage.spec.number == 0 or self._next in self._arrived or not self._fed[step].step.parts

    def _forward(self) -> None:
        number, micro_batch = self._next
        fed = self._fed[number]
        step = fed.step
        incoming = self._arrived.pop(self._next, {})
        if micro_batch == 0:
            prepared = fed.prepared if self.stage.only_starts else fed.prepared.result()
            if self.stage.waits:
                prepared = self.stage.wait(step, prepared)  # not within the span: others work then
        with self._span("forward", number, micro_batch):
            if micro_batch == 0:
                if self.stage.applies_at_once:
                    self._set_lr(number)
                self.stage.begin(step, prepared)
            if step.parts:
                with self._around(step, micro_batch):
                    result = self.stage.forward(step, micro_batch, incoming)
        ended = micro_batch + 1 >= step.parts
        self._next = (number + 1, 0) if ended else (number, micro_batch + 1)
        if not step.parts:
            self._apply(step)
            return
        if self.stage.is_last:
            self._sent_back(step, micro_batch, result)
        else:
            self._pipeline.send(self.stage.spec.number + 1, Forward(number, micro_batch, result))

    def _backward(self, message: Backward) -> None:
        del self._returned[message.step, message.micro_batch]
        step = self._fed[message.step].step
        if not self.stage.only_starts:
            message.wait()  # not within the span: that is the time of this stage's work
        with self._span("backward", message.step, message.micro_batch):
            grads = self.stage.backward(step, message.micro_batch, message.tensors)
        self._sent_back(step, message.micro_batch, grads)

    def _sent_back(self, step: Step, micro_batch: int, grads: Tensors) -> None:
        """After a backward: hands the gradients on, and applies the step if it was the last one."""
        if self.stage.spec.number > 0:
            self._pipeline.send(self.stage.spec.number - 1, Backward(step.number, micro_batch, grads))
        self._undone[step.number] -= 1
        if self._undone[step.number] == 0:
            self._apply(step)

    def _apply(self, step: Step) -> None:
        reduced = self._pipeline.reduce(step.number, self.stage)
        if self._reducing is not None:
            self._update_late()
        if not self.stage.applies_at_once:
            self._set_lr(step.number)  # not within a span: servers may have to answer
        if self.stage.waits and not self.stage.applies_at_once:
            with self._span("push", step.number, None):
                self.stage.push(step)  # the servers work on that while gradients are added up
        self._gone_back = step.number + 1
        if self._staleness and not reduced.ready():
            self._reducing = step, reduced
        else:
            self._update(step, reduced)

    def _update_late(self) -> None:
        """Updates by the gradients that had not come yet; those of the next step may be there in part."""
        assert self._reducing is not None
        (step, reduced), self._reducing = self._reducing, None
        with self.stage.gradients_aside():
            self._update(step, reduced)

    def _update(self, step: Step, reduced: Later[float]) -> None:
        scale = reduced.get()
        with self._span("update", step.number, None):
            loss = self.stage.apply(step, scale=scale)
        self._applying.append((step, loss))
        self._finish_applying()

    def _finish_applying(self) -> bool:
        """Tells of the next step whose updates are done; false if there is none."""
        step, loss = self._applying[0]
        if not self.stage.is_applied(step.number):
            return False
        self._applying.popleft()
        self._applied = step.number + 1
        del self._undone[step.number], self._fed[step.number]
        self._pipeline.applied(self.stage.spec.number, step, loss)
        return True

    def _set_lr(self, step: int) -> None:
        if self._pipeline.schedule is not None:
            self.stage.set_lr(self._pipeline.schedule(step))

    def _span(self, name: str, step: int, micro_batch: int | None) -> Any:
        if self.stage.only_starts:
            return nullcontext()  # it tells of its work itself
        return self._pipeline.recorder.span(name, stage=self.stage.spec.number, step=step, micro_batch=micro_batch)
