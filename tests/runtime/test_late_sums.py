"""Gradients that come late from other replicas: with staleness the next step goes on, and nothing is mixed."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
import torch
from torch import Tensor

from heterps.models import Chain
from heterps.runtime.later import Later
from heterps.runtime.placement import StageSpec
from heterps.runtime.stage import Stage, Step
from heterps.runtime.worker import Fed, Worker
from heterps.telemetry import Recorder
from tests.runtime.chains import DENSE, fc, loss, random_batches

SIZE, PARTS = 16, 2
LR = 0.1


class Hub:
    """Takes the stage's gradients, and gives them back, twofold, when `come` says so: as from a twin with the same."""

    def __init__(self) -> None:
        self.recorder, self.schedule = Recorder(), None
        self.come, self.waited = False, 0
        self.losses: list[float] = []

    def send(self, stage: int, message: Any) -> None:
        raise AssertionError("there is one stage")

    def applied(self, stage: int, step: Step, loss: Any) -> None:
        self.losses.append(float(loss))

    def reduce(self, step: int, stage: Stage) -> Later[float]:
        parameters = list(stage.parameters.values())
        own = [parameter.grad for parameter in parameters]
        for parameter in parameters:
            parameter.grad = None

        def give() -> float:
            self.waited += not self.come
            for parameter, grad in zip(parameters, own, strict=True):
                assert grad is not None
                parameter.grad = 2 * grad
            return 1.0

        return Later(give, lambda: self.come)

    def fail(self, error: BaseException, stage: StageSpec) -> None:
        raise error


class Run:
    """A worker of one dense stage, and batches of two micro-batches."""

    def __init__(self, *, staleness: int, steps: int = 3) -> None:
        torch.manual_seed(0)
        self.chain = Chain(fc("logit", ["dense"], DENSE, 1, relu=False), loss())
        self.stage = Stage(
            StageSpec(0, 0, 1, "alpha", 1, torch.device("cpu"), 1), self.chain, [],
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=LR), keep_weights_version=staleness > 0,
        )  # fmt: skip
        self.hub = Hub()
        self.worker = Worker(self.stage, self.hub, first_step=0, staleness=staleness)
        self.batches = random_batches(steps, size=SIZE)
        for number, batch in enumerate(self.batches):
            prepared: Future[Any] = Future()
            prepared.set_result([])
            whole = {name: batch[name] for name in self.stage.reads}
            self.worker.take(Fed(Step(number, whole, [0, SIZE // 2, SIZE]), prepared))
        self.weights = [parameter.detach().clone() for parameter in self.stage.parameters.values()]

    def grads(self, weights: list[Tensor], step: int, part: int) -> list[Tensor]:
        """By plain PyTorch, of one micro-batch; a half of the mean over the step."""
        own = [weight.clone().requires_grad_() for weight in weights]
        rows = slice(part * SIZE // PARTS, (part + 1) * SIZE // PARTS)
        batch = self.batches[step]
        scores = torch.nn.functional.linear(batch["dense"][rows], *own).flatten()
        labels = batch["label"][rows].flatten()
        mean = torch.nn.functional.binary_cross_entropy_with_logits(scores, labels) / PARTS
        return list(torch.autograd.grad(mean, own))

    def moved(self, weights: list[Tensor], *grads: list[Tensor]) -> list[Tensor]:
        """Weights after an update by twice the gradients."""
        return [w - 2 * LR * sum(own) for w, own in zip(weights, zip(*grads, strict=True), strict=True)]

    def expect(self, weights: list[Tensor]) -> None:
        for parameter, weight in zip(self.stage.parameters.values(), weights, strict=True):
            torch.testing.assert_close(parameter.detach(), weight)


def test_the_next_step_begins_before_they_come_and_keeps_its_own():
    run = Run(staleness=1)
    first = run.weights
    for _ in range(3):  # both parts of step 0, one of step 1
        assert run.worker.work()
    run.expect(first)
    run.hub.come = True
    assert run.worker.work()
    second = run.moved(first, run.grads(first, 0, 0), run.grads(first, 0, 1))
    run.expect(second)
    run.hub.come = False
    for _ in range(2):  # the other part of step 1, one of step 2
        assert run.worker.work()
    run.hub.come = True
    assert run.worker.work()
    run.expect(run.moved(second, run.grads(first, 1, 0), run.grads(second, 1, 1)))
    assert run.hub.waited == 0


def test_no_step_goes_further_ahead_than_it_may():
    run = Run(staleness=1)
    while run.worker.work():
        pass
    assert run.hub.waited == len(run.batches)  # never come: waited for when there is nothing else to do
    assert len(run.hub.losses) == len(run.batches)
    first = run.weights
    second = run.moved(first, run.grads(first, 0, 0), run.grads(first, 0, 1))
    third = run.moved(second, run.grads(first, 1, 0), run.grads(first, 1, 1))
    run.expect(run.moved(third, run.grads(second, 2, 0), run.grads(second, 2, 1)))


@pytest.mark.parametrize("come", [False, True])
def test_without_staleness_they_are_waited_for(come):
    run = Run(staleness=0)
    run.hub.come = come
    weights = run.weights
    for step in range(len(run.batches)):
        assert run.worker.work()
        assert run.worker.work()
        weights = run.moved(weights, run.grads(weights, step, 0), run.grads(weights, step, 1))
        run.expect(weights)
    assert run.hub.waited == (0 if come else len(run.batches))
