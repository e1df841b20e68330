"""Evaluations on held-out data between stretches: by a chain of the coordinator, with the rows of the run's servers."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import torch

from heterps.models import Chain
from heterps.runtime.cluster.journal import Journal
from heterps.runtime.cluster.parts import Part
from heterps.runtime.cluster.tally import Outcome
from heterps.runtime.cluster.work import Work
from heterps.runtime.evaluation import Evaluation, evaluate
from heterps.runtime.placement import cores


class Judge:
    """Evaluates an attempt's weights and rows, and knows when there is no more gain. Rows are read, and none made."""

    def __init__(self, chain: Chain, work: Work, outcome: Outcome, journal: Journal) -> None:
        """Takes a chain whose tables are bound to the attempt's servers."""
        self._chain, self._work, self._outcome, self._journal = chain, work, outcome, journal

    @property
    def willing(self) -> bool:
        """Whether there is held-out data."""
        return self._work.evaluation is not None

    @property
    def judged(self) -> bool:
        """Whether the last evaluation is of this step, or there is nothing to evaluate on."""
        found = self._outcome.evaluations
        return not self.willing or (bool(found) and found[-1]["step"] == self._outcome.step)

    @property
    def due(self) -> bool:
        """Whether this step is one to evaluate after."""
        every = self._work.settings.eval_every
        return every is not None and self._outcome.step % every == 0 and not self.judged

    @property
    def no_more_gain(self) -> bool:
        """Whether the evaluations so far say that the run should end early."""
        rule, found = self._work.settings.early_stop, self._outcome.evaluations
        if rule is None or len(found) <= rule.patience:
            return False
        gains = [Evaluation(**one).merit for one in found]
        return max(gains[-rule.patience :]) <= max(gains[: -rule.patience]) + rule.min_gain

    @cached_property
    def _held_out(self) -> Any:
        assert self._work.evaluation is not None
        return self._work.evaluation()

    def evaluate(self, part: Part) -> None:
        """Evaluates, while all replicas wait: their cores are free."""
        settings, outcome, began, now = self._work.settings, self._outcome, time.monotonic(), time.time()
        self._chain.load_state_dict(dict(part.dense))
        threads = torch.get_num_threads()
        torch.set_num_threads(cores())
        try:
            found = evaluate(
                self._chain, self._held_out, step=outcome.step, batch_size=settings.batch_size,
                batches=settings.eval_batches,
            )  # fmt: skip
        finally:
            torch.set_num_threads(threads)
        outcome.evaluations.append(found.to_dict())
        self._journal.span(
            "evaluate", stage=None, step=outcome.step, micro_batch=None, began=now, seconds=time.monotonic() - began
        )
        self._journal.event("evaluation", **found.to_dict())
        self._journal.scalar("eval/loss", found.loss, step=outcome.step)
        if found.auc is not None:
            self._journal.scalar("eval/auc", found.auc, step=outcome.step)
