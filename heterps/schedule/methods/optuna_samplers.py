"""`bayesian`, `genetic`: Optuna's samplers on the same objective, as baselines."""

from __future__ import annotations

import math
import warnings

import numpy as np
import optuna

from heterps.schedule.objective import Objective, Scores
from heterps.schedule.problem import Placements
from heterps.schedule.search import Settings

BAYESIAN_TRIALS, GENETIC_TRIALS = 200, 1000
"""Trials that take some seconds for 20 layers: a Bayesian trial costs more than a genetic one."""


class Sampled:
    """Asks an Optuna study for one placement at a time. Infeasible ones get a value above all feasible ones."""

    proved = 0.0
    cutoff = math.inf

    def __init__(
        self, objective: Objective, settings: Settings, sampler: optuna.samplers.BaseSampler, trials: int
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(sampler=sampler)
        self._choices = [np.flatnonzero(row).tolist() for row in objective.problem.runnable]
        self._left = trials if settings.trials is None else settings.trials
        self._worst = 0.0
        self._trial: optuna.Trial | None = None

    def propose(self) -> Placements:
        """The study's next trial."""
        if self._left <= 0:
            return np.empty((0, len(self._choices)), dtype=np.int32)
        self._left -= 1
        self._trial = self._study.ask()
        picks = [self._trial.suggest_categorical(f"layer{i}", choices) for i, choices in enumerate(self._choices)]
        return np.array([picks], dtype=np.int32)

    def feedback(self, placements: Placements, scores: Scores) -> None:
        """Tells the study the logarithm of the value."""
        assert self._trial is not None
        value = float(scores.value[0])
        if math.isfinite(value):
            told = math.log(max(value, 1e-300))
            self._worst = max(self._worst, told)
        else:
            told = self._worst + 1.0 + math.log1p(float(scores.violation[0]))
        self._study.tell(self._trial, told)


def bayesian(objective: Objective, settings: Settings) -> Sampled:
    """Tree-structured Parzen estimator, layers considered together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=settings.seed, multivariate=True)
    return Sampled(objective, settings, sampler, BAYESIAN_TRIALS)


def genetic(objective: Objective, settings: Settings) -> Sampled:
    """NSGA-II with one objective: selection, crossover and mutation."""
    sampler = optuna.samplers.NSGAIISampler(population_size=50, seed=settings.seed)
    return Sampled(objective, settings, sampler, GENETIC_TRIALS)
