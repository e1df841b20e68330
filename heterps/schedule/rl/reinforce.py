"""`rl`, `rl-rnn`: REINFORCE with a recurrent policy that starts pretrained.

Each round samples placements, scores them, and moves the policy towards those above a moving average of the rewards; an
entropy bonus keeps it exploring. An infeasible placement earns less than any feasible one, the less the further it is
from feasible, so that learning has a slope. Beside the samples a round scores moves away from a new best
placement, or else crossings of good ones, and the best are imitated, so that what these find is not forgotten.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from heterps.schedule.neighbours import crossings, segment_moves
from heterps.schedule.objective import Objective, Scores
from heterps.schedule.problem import Placements
from heterps.schedule.rl.best import Best
from heterps.schedule.rl.features import features
from heterps.schedule.rl.policy import Cell, Policy, entropy, explore, most_likely, sample, transitions
from heterps.schedule.search import Settings

SAMPLES = 256
"""Placements drawn a round."""

ALONE_SAMPLES = 8192
"""Placements drawn where the pretrained policy is used as it is."""

ROUNDS = 1500
PATIENCE = 100
"""Rounds without a better placement after which a try has converged, and the next starts from the pretrained policy."""

EXPLORE = (0.05, 0.3, 0.15, 0.5, 0.1)
"""For each try, the share of layers whose type is drawn evenly instead of by the network: no placement is out of reach,
and tries differ in how far they look."""

AGREED = 3
"""Tries that must end with the same best value for the search to have converged. Measured on 142 random problems, 60 of
them with tight limits: three tries never agreed on less than the optimum; the first two did on two problems, 0.6% above
it. The policy's entropy tells less: the bonus keeps it up."""

ENUMERABLE = 4096
"""Placements up to which those scored are remembered: once all are, nothing is left to learn."""

MOVES = 2048
"""Moves away from a new best placement that the next round scores beside its samples."""

LEARNING_RATE = 1e-3
ENTROPY_BONUS = 0.05
ELITE, NEAR = 32, 16
"""Best placements of a try that are kept, and infeasible ones that come nearest: where limits are tight, good plans lie
between them. Rounds without a new best score crossings of these beside the samples."""

IMITATED, IMITATION = 8, 0.1
"""How many of the best are imitated, and the weight of that against the samples' advantages."""

BASELINE_DECAY = 0.9
PENALTY = 1.0
"""What infeasibility costs in reward (the logarithm of the value), plus the logarithm of how far off it is."""


class Reinforce:
    """Learns a placement for one problem. The same seed gives the same plan."""

    proved = 0.0
    cutoff = math.inf

    def __init__(self, objective: Objective, settings: Settings, *, cell: Cell = "lstm") -> None:
        self._problem = objective.problem
        self._rng = np.random.default_rng(settings.seed)
        self._rounds = ROUNDS if settings.rounds is None else settings.rounds
        self._cell: Cell = cell
        self._features = torch.from_numpy(features(self._problem)).unsqueeze(0)
        self._round = 0
        self._try = 0
        self._ends: list[float] = []
        possible = math.prod(int(types) for types in self._problem.runnable.sum(axis=1))
        self._unseen = possible if possible <= ENUMERABLE else math.inf
        self._seen: set[bytes] = set()
        self._worst = 0.0
        self._log_p: torch.Tensor | None = None
        self._samples = 0
        self._restart()

    def _restart(self) -> None:
        """Forgets what this try has learnt."""
        self._policy = Policy.pretrained(self._cell)
        self._optimizer = torch.optim.Adam(self._policy.parameters(), lr=LEARNING_RATE)
        self._stalled = 0
        self._baseline: float | None = None
        self._best = math.inf
        self._best_placement: NDArray[np.int32] | None = None
        self._elite = Best(self._problem.layers, ELITE)
        self._near = Best(self._problem.layers, NEAR)

    def propose(self) -> Placements:
        """This round's samples, the policy's most likely placement, and moves away from a new best."""
        if self._stalled > PATIENCE:
            self._ends.append(self._best)
            self._try += 1
            self._restart()
        if self._done():
            return np.empty((0, self._problem.layers), dtype=np.int32)
        with _one_thread():
            self._log_p = explore(self._policy(self._features)[0], EXPLORE[self._try])
        log_p = self._log_p.detach().numpy()
        drawn = sample(log_p, SAMPLES if self._rounds else ALONE_SAMPLES, self._rng)
        self._samples = len(drawn)
        extra = most_likely(log_p)
        if self._best_placement is not None and self._stalled == 0:
            moves = segment_moves(self._best_placement, self._problem.runnable, most=MOVES, rng=self._rng)
            extra = np.vstack([extra, moves])
        elif len(parents := np.vstack([self._elite.placements, self._near.placements])):
            extra = np.vstack([extra, crossings(parents, self._problem.runnable, SAMPLES, self._rng)])
        return np.vstack([drawn, extra])

    def feedback(self, placements: Placements, scores: Scores) -> None:
        """One step of REINFORCE on the samples."""
        first = int(np.argmin(scores.value))
        self._stalled += 1
        if scores.value[first] < self._best * (1 - 1e-9):
            self._best, self._best_placement = float(scores.value[first]), placements[first].copy()
            self._stalled = 0
        self._keep_elite(placements, scores)
        self._tick_off(placements)
        self._round += 1
        if self._round > self._rounds:
            return
        rewards = self._rewards(scores)[: self._samples]
        mean = float(rewards.mean())
        self._baseline = mean if self._baseline is None else self._baseline
        advantages = (rewards - self._baseline) / (rewards.std() + 1e-6)
        self._baseline = BASELINE_DECAY * self._baseline + (1 - BASELINE_DECAY) * mean
        steps = transitions(placements[: self._samples], advantages / self._samples, self._problem.types)
        if len(imitated := self._elite.placements[:IMITATED]):
            steps += transitions(imitated, np.full(len(imitated), IMITATION / len(imitated)), self._problem.types)
        assert self._log_p is not None
        with _one_thread():
            loss = -(steps * self._log_p).sum() - ENTROPY_BONUS * self._problem.layers * entropy(self._log_p)
            self._optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(self._policy.parameters(), 1.0)
            self._optimizer.step()

    def _done(self) -> bool:
        """Out of rounds or tries, converged, or out of placements."""
        best = min(self._ends, default=math.inf)
        agreed = math.isfinite(best) and sum(end <= best * (1 + 1e-9) for end in self._ends) >= AGREED
        return agreed or self._round > self._rounds or self._try >= len(EXPLORE) or self._unseen == 0

    def _tick_off(self, placements: Placements) -> None:
        """Counts the placements that were not scored yet, where they are few enough to be counted."""
        if math.isfinite(self._unseen):
            new = {row.tobytes() for row in placements} - self._seen
            self._unseen -= len(new)
            self._seen |= new

    def _keep_elite(self, placements: Placements, scores: Scores) -> None:
        # Moves away from one placement are all alike: of each round's, the best alone joins.
        joins = np.append(np.arange(self._samples), np.argmin(scores.value))
        self._elite = self._elite.merged(placements[joins], scores.value[joins])
        self._near = self._near.merged(placements, np.where(scores.violation > 0, scores.violation, np.inf))

    def _rewards(self, scores: Scores) -> NDArray[np.float64]:
        """Minus the logarithm of the value; infeasible placements stand below the worst feasible one seen."""
        feasible = np.isfinite(scores.value)
        with np.errstate(divide="ignore"):
            rewards = -np.log(np.where(feasible, scores.value, 1.0))
        if feasible.any():
            self._worst = min(self._worst, float(rewards[feasible].min()))
        return np.where(feasible, rewards, self._worst - PENALTY - np.log1p(scores.violation))


class _one_thread:  # noqa: N801
    """Runs a block of torch on one thread: the tensors are small, and waking threads costs more than it gives."""

    def __enter__(self) -> None:
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._threads)


def rl(objective: Objective, settings: Settings) -> Reinforce:
    """The LSTM policy."""
    return Reinforce(objective, settings, cell="lstm")


def rl_rnn(objective: Objective, settings: Settings) -> Reinforce:
    """The same with a plain RNN."""
    return Reinforce(objective, settings, cell="rnn")
