"""A stage's thread: takes what comes, backward first, and never runs further ahead than it may."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Protocol, SupportsFloat

import torch

from heterps.runtime.placement import StageSpec
from heterps.runtime.schedules import Schedule
from heterps.runtime.stage import OnItsWay, Stage, Step, Tensors
from heterps.telemetry import Recorder


@dataclass(frozen=True, slots=True)
class Fed:
    """A batch for this stage; `prepared` is waited for before it is used."""

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


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""


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

    def reduce(self, step: int, stage: Stage) -> float:
        """Makes a stage's gradients those of the whole step, and gives what they are multiplied by."""
        ...

    def fail(self, error: BaseException, stage: StageSpec) -> None:
        """A stage raised."""
        ...


class Worker(threading.Thread):
    """Runs one stage.

    A forward may start when its batch and its activations are there and at most `staleness` earlier steps are not
    applied yet. Backward goes before forward, so that what is in flight stays little. A step is applied when the
    backward of its last micro-batch is done.
    """

    def __init__(
        self,
        stage: Stage,
        pipeline: Hub,
        *,
        first_step: int,
        staleness: int,
        before: Callable[[Step, int], None] = lambda step, micro_batch: None,
    ) -> None:
        """Makes the thread; `before` is called in it ahead of each forward."""
        super().__init__(name=str(stage.spec), daemon=True)
        self.stage = stage
        self.started = threading.Event()
        self.inbox: SimpleQueue[Fed | Forward | Backward | Stop] = SimpleQueue()
        self._pipeline, self._before = pipeline, before
        self._staleness = staleness
        self._applied = first_step  # steps before this one
        self._next = (first_step, 0)
        self._fed: dict[int, Fed] = {}
        self._arrived: dict[tuple[int, int], Tensors] = {}
        self._returned: dict[tuple[int, int], Backward] = {}
        self._undone: dict[int, int] = {}  # micro-batches of a step without a backward

    def run(self) -> None:
        """Works until told to stop; an error ends the whole pipeline."""
        try:
            if self.stage.spec.device.type == "cuda":
                torch.cuda.set_device(self.stage.spec.device)
            else:
                torch.set_num_threads(self.stage.spec.threads)
            self.started.set()
            while self._listen(block=False) and self._work():
                pass
        except BaseException as error:  # whatever it is, nobody may wait for this stage any longer
            self.started.set()
            self._pipeline.fail(error, self.stage.spec)

    def _work(self) -> bool:
        """Does one thing, or waits for a message. False to stop."""
        returned = self._returned.get(self._next_backward())
        if returned is not None and (returned.ready() or not self._may_go_forward()):
            self._backward(returned)
            return True
        if self._may_go_forward():
            self._forward()
            return True
        return self._listen(block=True)

    def _listen(self, *, block: bool) -> bool:
        """Takes the messages that are there, with `block` at least one. False to stop."""
        while block or not self.inbox.empty():
            message = self.inbox.get()
            block = False
            if isinstance(message, Stop):
                return False
            if isinstance(message, Fed):
                self._fed[message.step.number] = message
                self._undone[message.step.number] = message.step.parts
            elif isinstance(message, Forward):
                self._arrived[message.step, message.micro_batch] = message.tensors
            else:
                self._returned[message.step, message.micro_batch] = message
        return True

    def _next_backward(self) -> tuple[int, int]:
        """In the order of forwards, whoever of several replicas of the next stage was the first."""
        step = self._fed.get(self._applied)
        return self._applied, step.step.parts - self._undone[self._applied] if step is not None else 0

    def _may_go_forward(self) -> bool:
        step, _ = self._next
        if step not in self._fed or step - self._applied > self._staleness:
            return False
        return self.stage.spec.number == 0 or self._next in self._arrived or not self._fed[step].step.parts

    def _forward(self) -> None:
        number, micro_batch = self._next
        fed = self._fed[number]
        step = fed.step
        incoming = self._arrived.pop(self._next, {})
        if micro_batch == 0:
            prepared = fed.prepared.result()
        with self._span("forward", number, micro_batch):
            if micro_batch == 0:
                if self.stage.applies_at_once:
                    self._set_lr(number)
                self.stage.begin(step, prepared)
            if step.parts:
                self._before(step, micro_batch)
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
        scale = self._pipeline.reduce(step.number, self.stage)
        with self._span("update", step.number, None):
            if not self.stage.applies_at_once:
                self._set_lr(step.number)
            loss = self.stage.apply(step, scale=scale)
        self._applied = step.number + 1
        del self._undone[step.number], self._fed[step.number]
        self._pipeline.applied(self.stage.spec.number, step, loss)

    def _set_lr(self, step: int) -> None:
        if self._pipeline.schedule is not None:
            self.stage.set_lr(self._pipeline.schedule(step))

    def _span(self, name: str, step: int, micro_batch: int | None) -> Any:
        return self._pipeline.recorder.span(name, stage=self.stage.spec.number, step=step, micro_batch=micro_batch)
