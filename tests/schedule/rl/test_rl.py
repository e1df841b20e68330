"""The policy and REINFORCE: exact probabilities, learning, the shipped weights, and quality against the optimum."""

from __future__ import annotations

import itertools
import math
from importlib import resources

import numpy as np
import pytest
import torch

from heterps.plan import Cluster, Profile
from heterps.schedule.goal import Goal
from heterps.schedule.methods.exact import Exact
from heterps.schedule.neighbours import crossings, neighbours, segment_moves
from heterps.schedule.objective import ClosedForm, Objective
from heterps.schedule.problem import Problem
from heterps.schedule.random_problems import random_problem
from heterps.schedule.rl.best import Best
from heterps.schedule.rl.features import FEATURES, features
from heterps.schedule.rl.policy import Cell, Policy, entropy, explore, most_likely, sample, transitions
from heterps.schedule.rl.reinforce import PATIENCE, Reinforce
from heterps.schedule.search import Progress, Settings, search


def all_placements(layers: int, types: int) -> np.ndarray:
    return np.array(list(itertools.product(range(types), repeat=layers)), dtype=np.int32)


def log_likelihood(log_p: np.ndarray, placements: np.ndarray) -> np.ndarray:
    total = log_p[0, 0, placements[:, 0]].astype(float)
    for layer in range(1, log_p.shape[0]):
        total += log_p[layer, placements[:, layer - 1], placements[:, layer]]
    return total


@pytest.fixture(params=["lstm", "rnn"])
def cell(request: pytest.FixtureRequest) -> Cell:
    return request.param  # type: ignore[no-any-return]


def chain(cell: Cell, seed: int = 0, *, share: float = 0.1) -> torch.Tensor:
    problem = random_problem(np.random.default_rng(seed), layers=4, types=3)
    inputs = torch.from_numpy(features(problem)).unsqueeze(0)
    return explore(Policy.pretrained(cell)(inputs)[0], share).detach()


def test_probabilities_sum_to_one_and_samples_follow_them(cell: Cell) -> None:
    log_p = chain(cell).numpy()
    every = all_placements(4, 3)
    probability = np.exp(log_likelihood(log_p, every))
    assert probability.sum() == pytest.approx(1.0, abs=1e-5)
    drawn = sample(log_p, 40_000, np.random.default_rng(0))
    counts = np.bincount(drawn @ np.array([27, 9, 3, 1]), minlength=81) / len(drawn)
    assert np.abs(counts - probability).max() < 0.015
    assert np.array_equal(most_likely(log_p)[0], every[probability.argmax()])


def test_entropy_and_transitions_equal_enumeration(cell: Cell) -> None:
    log_p = chain(cell)
    every = all_placements(4, 3)
    log_likelihoods = log_likelihood(log_p.numpy(), every)
    expected = -(np.exp(log_likelihoods) * log_likelihoods).sum() / 4
    assert float(entropy(log_p)) == pytest.approx(expected, rel=1e-3)
    weights = np.random.default_rng(1).normal(size=len(every))
    inner = float((transitions(every, weights, 3) * log_p).sum())
    assert inner == pytest.approx(float(weights @ log_likelihoods), rel=1e-3)


def test_the_policy_serves_any_size_and_any_order_of_types(cell: Cell) -> None:
    policy = Policy.pretrained(cell)
    for layers, types in ((1, 1), (3, 12), (50, 2)):
        log_p = policy(torch.zeros(2, types, layers, FEATURES) + torch.eye(FEATURES)[0])
        assert log_p.shape == (2, layers, types, types)
    inputs = torch.from_numpy(features(random_problem(np.random.default_rng(3), layers=6, types=4)))
    order = [2, 0, 3, 1]
    straight, shuffled = policy(inputs.unsqueeze(0))[0], policy(inputs[order].unsqueeze(0))[0]
    assert torch.allclose(straight[:, order][:, :, order], shuffled, atol=1e-4)


def test_impossible_types_are_never_drawn() -> None:
    for seed in range(40):
        problem = random_problem(np.random.default_rng(seed), layers=8, types=4)
        if problem.runnable.all():
            continue
        log_p = explore(Policy.pretrained()(torch.from_numpy(features(problem)).unsqueeze(0))[0], 0.3).detach().numpy()
        drawn = sample(log_p, 500, np.random.default_rng(0))
        assert problem.runnable[np.arange(8), drawn].all()
        return
    pytest.fail("no problem with a missing type among the seeds")


def test_shipped_policies_are_small() -> None:
    for cell in ("lstm", "rnn"):
        path = resources.files("heterps.schedule.rl") / f"policy-{cell}.npz"
        assert len(path.read_bytes()) < 1_000_000


def test_features_are_finite_and_without_units() -> None:
    problem = random_problem(np.random.default_rng(5), layers=9, types=5)
    seen = features(problem)
    assert seen.shape == (5, 9, FEATURES)
    assert np.isfinite(seen).all()
    assert np.abs(seen).max() < 20


def test_rl_learns_without_pretraining(monkeypatch: pytest.MonkeyPatch) -> None:
    """From random weights the samples' mean cost falls: REINFORCE points the right way."""
    torch.manual_seed(0)
    monkeypatch.setattr(Policy, "pretrained", classmethod(lambda cls, cell="lstm": cls(cell)))
    problem = random_problem(np.random.default_rng(21), layers=10, types=4)
    objective = ClosedForm(problem)
    method = Reinforce(objective, Settings(rounds=60))
    means = []
    for _ in range(60):
        batch = method.propose()
        scores = objective.score(batch)
        value = scores.value[:256]
        means.append(np.where(np.isfinite(value), np.log(value), 0.0).mean())
        method.feedback(batch, scores)
    assert np.mean(means[-5:]) < np.mean(means[:5]) - 0.1


def few_placements(*types: int) -> ClosedForm:
    """A layer for each number of types, which the first so many of them can run."""
    costs = {f"t{t}": {"compute_s": 1.0 + t, "sync_s": 0.0} for t in range(max(types))}
    layers = [{"name": f"l{i}", "costs": dict([*costs.items()][:count])} for i, count in enumerate(types)]
    kinds = {name: {"device": "cpu", "price_per_hour": 1.0} for name in costs}
    profile = Profile.from_dict({"format": "heterps.profile/1", "batch_size": 1, "layers": layers})
    return ClosedForm(Problem(profile, Cluster.from_dict({"types": kinds}), Goal(min_throughput=0.5)))


def rounds_of(objective: Objective, method: Reinforce) -> tuple[int, float]:
    """How many rounds a search takes, and the best value it finds."""
    progress: list[Progress] = []
    search(objective, method, progress.append)
    return len(progress), progress[-1].best


@pytest.mark.parametrize("types", [(1,), (1, 1, 1), (2,), (1, 3, 1, 2)])
def test_rl_stops_when_every_placement_is_scored(cell: Cell, types: tuple[int, ...]) -> None:
    objective = few_placements(*types)
    rounds, value = rounds_of(objective, Reinforce(objective, Settings(), cell=cell))
    assert rounds <= PATIENCE / 5
    assert value == pytest.approx(search(objective, Exact(objective, Settings())).value, rel=1e-6)


def test_rl_stops_when_three_tries_agree() -> None:
    """Each ends after its last better placement and the rounds of patience, so that five would take 500 or more."""
    objective = ClosedForm(random_problem(np.random.default_rng([2_000_000, 7, 1]), layers=11, types=6))
    found = [rounds_of(objective, Reinforce(objective, Settings(seed=3))) for _ in range(2)]
    assert found[0] == found[1]
    assert 3 * PATIENCE < found[0][0] < 4 * PATIENCE
    assert found[0][1] == pytest.approx(search(objective, Exact(objective, Settings())).value, rel=1e-6)


@pytest.mark.parametrize(
    ("ends", "done"),
    [
        ([], False),
        ([1.0, 1.0], False),
        ([1.0, 2.0, 2.0, 2.0], False),
        ([2.0, 1.0, 1.0, 1.0], True),
        ([math.inf] * 3, False),
    ],
)
def test_tries_agree_on_the_best_alone(ends: list[float], done: bool) -> None:
    method = Reinforce(few_placements(*[4] * 12), Settings())
    method._ends = ends
    assert (len(method.propose()) == 0) == done


@pytest.mark.parametrize("block", range(3))
def test_rl_is_near_the_optimum_and_the_policy_alone_not_far(block: int) -> None:
    """A small sample of what the benchmark measures on a hundred problems."""
    gaps, alone = [], []
    for seed in range(4 * block, 4 * block + 4):
        rng = np.random.default_rng([seed, 99])
        problem = random_problem(rng, layers=int(rng.integers(8, 15)), types=int(rng.integers(2, 6)))
        objective = ClosedForm(problem)
        best = search(objective, Exact(objective, Settings())).value
        gaps.append(search(objective, Reinforce(objective, Settings(rounds=150))).value / best - 1)
        alone.append(search(objective, Reinforce(objective, Settings(rounds=0))).value / best - 1)
    assert max(gaps) < 0.1
    assert sorted(alone)[2] < 0.1


def test_neighbours_are_distinct_runnable_and_one_move_away() -> None:
    rng = np.random.default_rng(0)
    runnable = rng.random((9, 3)) < 0.8
    runnable[:, 0] = True
    start = np.zeros(9, dtype=np.int32)
    for batch in (
        neighbours(start, runnable),
        segment_moves(start, runnable, most=10_000, rng=rng),
        crossings(np.vstack([start, start]), runnable, 50, rng),
    ):
        assert batch.dtype == np.int32
        assert runnable[np.arange(9), batch].all()
        for row in batch:
            changed = np.flatnonzero(row)
            assert not len(changed) or len(set(row[changed])) == 1
            assert not len(changed) or changed[-1] - changed[0] == len(changed) - 1
    moves = segment_moves(start, np.ones((9, 3), dtype=bool), most=10_000, rng=rng)
    assert len(moves) == len({row.tobytes() for row in moves}) == 45 * 2
    assert len(segment_moves(start, np.ones((9, 3), dtype=bool), most=10, rng=rng)) <= 10


def test_best_keeps_the_least_values_once() -> None:
    best = Best(2, 2)
    rows = np.array([[0, 0], [1, 1], [0, 0], [2, 2], [1, 0]], dtype=np.int32)
    best = best.merged(rows, np.array([3.0, 1.0, 3.0, math.inf, 2.0]))
    assert best.placements.tolist() == [[1, 1], [1, 0]]
    assert best.merged(rows[:1], np.array([0.5])).placements.tolist() == [[0, 0], [1, 1]]
