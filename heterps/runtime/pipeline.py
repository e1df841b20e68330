"""Stages in threads of one process, wired to each other, fed from here, and stopped together."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import SupportsFloat

import torch
from torch import Tensor

from heterps.errors import HeterPSError, InvalidInput
from heterps.models.batch import Batch, batch_size
from heterps.runtime.later import Later
from heterps.runtime.memory import keep_freed_memory
from heterps.runtime.placement import StageSpec
from heterps.runtime.randomness import seeded
from heterps.runtime.runner import Runner
from heterps.runtime.stage import Stage, Step
from heterps.runtime.worker import Backward, Fed, Forward, Worker
from heterps.telemetry import Recorder

SWITCH_S = 0.0005
"""How long a thread may keep others waiting for the interpreter: a step on a GPU takes a millisecond, and Python's own
5 ms would let one thread hold up the others for several."""


class StageFailed(HeterPSError):
    """A stage raised; the cause is the error it raised."""


class Pipeline:
    """Runs steps through stages. `submit` and `drain` are called by one thread.

    With `staleness` s, a stage starts a step while at most s earlier ones are not applied to its weights; s = 0 is
    synchronous training.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        *,
        first_step: int = 0,
        staleness: int = 0,
        clip_norm: float | None = None,
        schedule: Callable[[int], float] | None = None,
        recorder: Recorder,
        ahead: int = 2,
        seed: int | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the stages' threads.

        Args:
            stages: in order.
            first_step: number of the first step that will be submitted.
            staleness: steps a stage may run ahead.
            clip_norm: largest norm of a step's dense gradients, over all stages.
            schedule: step -> factor of all learning rates.
            recorder: of spans.
            ahead: batches that are prepared (ids looked up, memory copied) beyond those that are computed.
            seed: of layers that draw, such as dropout, by step, micro-batch and stage; None: they draw as they come.
            on_failure: wakes what waits outside of the pipeline; also called at the end.
        """
        self.recorder = recorder
        self.schedule = schedule
        self.stages = stages
        self._clip_norm = clip_norm
        self._norms: dict[int, list[Tensor]] = {}
        self._changed = threading.Condition()
        self._applied = [first_step] * len(stages)
        self._submitted = first_step
        self._losses: dict[int, SupportsFloat] = {}
        self._error: BaseException | None = None
        self._closed = False
        self._failed_stage: StageSpec | None = None
        self._on_failure = on_failure
        self._in_flight = staleness + 1 + ahead
        # One thread for each stage: what a stage waits for there must not hold up the others.
        self._preparers = [
            None if stage.only_starts else ThreadPoolExecutor(1, thread_name_prefix="prepare") for stage in stages
        ]
        self._workers = [
            Worker(stage, self, first_step=first_step, staleness=staleness,
                   around=None if seed is None else seeded(stage, seed))
            for stage in stages
        ]  # fmt: skip
        self._runners: list[Runner] = []
        """Of each stage."""
        self._share_out(shares=clip_norm is None)  # to clip, stages wait for each other
        keep_freed_memory()
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(min(SWITCH_S, self._switch_s))
        # PyTorch keeps the threads of matrix products by thread, but those of simpler operations for the whole process:
        # the stage with the most units sets them last.
        for runner in sorted(set(self._runners), key=lambda one: max(w.stage.spec.threads for w in one.workers)):
            runner.start()
            runner.started.wait()

    def _share_out(self, *, shares: bool) -> None:
        """Makes the threads. With `shares`, a stage that only starts things goes with the next one if that is brief."""
        own: list[Worker] = []
        for worker, following in zip(self._workers, [*self._workers[1:], None], strict=True):
            own.append(worker)
            if shares and worker.stage.only_starts and following is not None and following.stage.brief:
                continue
            self._runners += [Runner(own, self.fail)] * len(own)
            own = []

    def submit(self, batch: Batch, micro_batches: int) -> int:
        """Feeds a batch as the next step, as soon as there is room; gives the step's number."""
        number, size = self._submitted, batch_size(batch)
        if size == 0:
            raise InvalidInput("a batch has at least one sample, and this one has none")
        parts = max(1, min(micro_batches, size))
        bounds = [size * part // parts for part in range(parts + 1)]
        self._wait(lambda: number - min(self._applied) < self._in_flight)
        self._submitted += 1
        for runner, worker, preparer in zip(self._runners, self._workers, self._preparers, strict=True):
            stage = worker.stage
            step = Step(number, {name: batch[name] for name in stage.reads}, bounds)
            prepared = stage.prepare(step) if preparer is None else preparer.submit(stage.prepare, step)
            runner.send(worker, Fed(step, prepared))
        return number

    def drain(self) -> None:
        """Returns when every submitted step is applied in all stages."""
        self._wait(lambda: min(self._applied) >= self._submitted)

    @property
    def completed(self) -> int:
        """Steps up to this one (not included) are applied in all stages."""
        return min(self._applied)

    def losses(self, *, wait: bool = False) -> dict[int, SupportsFloat]:
        """Losses of completed steps, each once; without `wait`, only those that can be read at once."""
        with self._changed:
            done = {
                step: loss for step, loss in self._losses.items()
                if step < min(self._applied) and (wait or getattr(loss, "ready", lambda: True)())
            }  # fmt: skip
            for step in done:
                del self._losses[step]
        return done

    @property
    def failed(self) -> bool:
        """True if a stage raised."""
        return self._error is not None

    def close(self) -> None:
        """Stops all threads, also those that wait for each other, and waits for them to end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._on_failure()
        for runner in self._runners:
            runner.stop()
        for preparer in self._preparers:
            if preparer is not None:
                preparer.shutdown(cancel_futures=True)
        sys.setswitchinterval(self._switch_s)
        for runner in self._runners:
            if runner is not threading.current_thread():
                runner.join()

    # Called by workers.

    def send(self, stage: int, message: Forward | Backward) -> None:
        """Hands tensors to a neighbouring stage."""
        self._runners[stage].send(self._workers[stage], message)

    def applied(self, stage: int, step: Step, loss: SupportsFloat | None) -> None:
        """A stage has updated its weights for a step."""
        with self._changed:
            self._applied[stage] = step.number + 1
            if loss is not None:
                self._losses[step.number] = loss
            self._changed.notify_all()

    def reduce(self, step: int, stage: Stage) -> Later[float]:
        """A stage here has all gradients of the step. What they are multiplied by needs the norms of all."""
        if self._clip_norm is None:
            return Later(lambda: 1.0)
        with self._changed:
            norms = self._norms.setdefault(step, [])
            norms.append(stage.squared_norm().cpu())
            self._norms.pop(step - self._in_flight - 1, None)
            self._changed.notify_all()
        return Later(lambda: self._factor(norms))

    def _factor(self, norms: list[Tensor]) -> float:
        """What gradients are multiplied by, once the norms of all stages are there."""
        assert self._clip_norm is not None
        with self._changed:
            self._changed.wait_for(lambda: len(norms) == len(self.stages) or self._error is not None or self._closed)
        if len(norms) < len(self.stages):
            raise StageFailed("the run ended while a step was under way")
        norm = math.sqrt(float(torch.stack(norms).sum()))
        return min(1.0, self._clip_norm / (norm + 1e-6))  # as torch.nn.utils.clip_grad_norm_ has it

    def fail(self, error: BaseException, stage: StageSpec) -> None:
        """A stage raised: the first error is kept, and everybody is woken."""
        with self._changed:
            if self._error is None:
                self._error, self._failed_stage = error, stage
            self._changed.notify_all()
        self._on_failure()
        for runner in self._runners:
            runner.stop()

    def _wait(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._error is not None)
        self.check()

    def check(self) -> None:
        """Raises what a stage raised, if one did."""
        if self._error is not None:
            if isinstance(self._error, HeterPSError):
                raise self._error
            where = "".join(f" ({note})" for note in getattr(self._error, "__notes__", ()))
            what = f"{type(self._error).__name__}: {self._error}{where}"
            raise StageFailed(f"{self._failed_stage} failed: {what}") from self._error
