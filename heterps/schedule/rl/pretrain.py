"""Makes the policy that ships with the package: random problems, their proved optima, and a policy that imitates them.

The exact planner answers a random problem in milliseconds, so the policy learns from optimal placements directly; a
second phase of REINFORCE on the same problems teaches it what its own slips cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from heterps.schedule.methods.exact import Exact
from heterps.schedule.objective import ClosedForm
from heterps.schedule.problem import Problem
from heterps.schedule.random_problems import random_problem
from heterps.schedule.rl.features import features
from heterps.schedule.rl.policy import Cell, Policy, sample, transitions
from heterps.schedule.search import Settings, search

BATCH = 16
"""Problems a step; all of one size, so that nothing is padded."""


@dataclass(frozen=True, eq=False)
class Lesson:
    """Problems of one size, with their features and optimal placements."""

    problems: list[Problem]
    features: torch.Tensor
    optima: NDArray[np.int32]
    values: NDArray[np.float64]


def pretrain(
    out: Path, *, batches: int, epochs: int, seed: int = 0, say: Callable[[str], None] = lambda _: None
) -> None:
    """Trains a policy of each cell from nothing and writes them into the directory `out`."""
    out.mkdir(parents=True, exist_ok=True)
    with get_context("spawn").Pool(2) as pool:
        lessons = []
        for lesson in pool.imap(make_lesson, range(seed, seed + batches), chunksize=4):
            lessons.append(lesson)
            if len(lessons) % 50 == 0:
                say(f"{len(lessons) * BATCH} problems solved")
    cells: tuple[Cell, ...] = ("lstm", "rnn")
    for cell in cells:
        _train(cell, lessons, epochs=epochs, seed=seed, say=say).save(out / f"policy-{cell}.npz")


def _train(cell: Cell, lessons: list[Lesson], *, epochs: int, seed: int, say: Callable[[str], None]) -> Policy:
    torch.set_num_threads(1)  # the tensors are small: waking threads costs more than it gives
    torch.manual_seed(seed)
    policy = Policy(cell)
    steps = len(lessons) * epochs
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    rng = np.random.default_rng(seed)
    began, losses = time.perf_counter(), []
    for step, lesson in enumerate(_shuffled(lessons, steps, rng)):
        log_p = policy(lesson.features)
        loss = _imitation(log_p, lesson)
        if step > steps * 2 // 3:
            loss = 0.5 * loss + _reinforce(log_p, lesson, rng)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if (step + 1) % 200 == 0:
            seconds = time.perf_counter() - began
            say(f"{cell}, step {step + 1}/{steps}: loss {np.mean(losses[-200:]):.4f}, {seconds:.0f} s")
    return policy


def make_lesson(seed: int) -> Lesson:
    """Problems of one random size, solved."""
    rng = np.random.default_rng([seed, 17])
    layers, types = int(rng.integers(3, 25)), int(rng.integers(2, 11))
    problems, optima, values = [], [], []
    for _ in range(BATCH):
        limit = int(rng.choice([20, 200, 500]))
        problem = random_problem(rng, layers=layers, types=types, max_limit=limit, sync=rng.random() < 0.15)
        objective = ClosedForm(problem)
        outcome = search(objective, Exact(objective, Settings(seconds=1.0)))
        assert outcome.placement is not None
        problems.append(problem)
        optima.append(outcome.placement)
        values.append(outcome.value)
    stacked = torch.from_numpy(np.stack([features(problem) for problem in problems]))
    return Lesson(problems, stacked, np.stack(optima), np.array(values))


def _shuffled(lessons: list[Lesson], steps: int, rng: np.random.Generator) -> Iterator[Lesson]:
    order: list[int] = []
    for _ in range(steps):
        order = order or rng.permutation(len(lessons)).tolist()
        yield lessons[order.pop()]


def _imitation(log_p: torch.Tensor, lesson: Lesson) -> torch.Tensor:
    types = log_p.shape[-1]
    one = np.ones(1)
    steps = torch.stack([transitions(optimum[None], one, types) for optimum in lesson.optima])
    return -(steps * log_p).sum() / lesson.optima.size


def _reinforce(log_p: torch.Tensor, lesson: Lesson, rng: np.random.Generator, samples: int = 24) -> torch.Tensor:
    types = log_p.shape[-1]
    table = log_p.detach().numpy()
    steps = []
    for i, problem in enumerate(lesson.problems):
        drawn = sample(table[i], samples, rng)
        scores = ClosedForm(problem).score(drawn)
        excess = np.where(np.isfinite(scores.value), np.log(np.minimum(scores.value / lesson.values[i], 10.0)), 3.0)
        rewards = -np.minimum(excess, 3.0)
        steps.append(transitions(drawn, (rewards - rewards.mean()) / samples, types))
    return -(torch.stack(steps) * log_p).sum() / lesson.optima.size * 4
