"""The area under the ROC curve, from histograms: cheap enough for every training step."""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
from torch import Tensor

from heterps.errors import InvalidInput

TOGETHER, TOGETHER_CALLS = 65_536, 64
"""Samples on the CPU, and calls, that are counted together."""
LATE = 4
"""Times as many may wait for `count`, which is for a thread with time to spare; then `update` counts them itself."""


class Auc:
    """Binned AUC: the chance that a positive sample scores above a negative one, a tie counting as half.

    Scores become probabilities p, and samples are counted by class and by how many of the T thresholds 0, 1/(T-1), ...,
    1 are at most p. Samples between the same two thresholds are ties. The result is that of torchmetrics'
    `BinaryAUROC(thresholds=T)` on the same p, at O(N log T) an update instead of O(N·T), but for one thing:
    torchmetrics leaves out the corner of the curve before its first point, so that ties at p = 1 (in float32 a logit
    above 17) count nothing there, and half here.

    An update on a GPU is a handful of kernels and waits for none; on the CPU small ones are put together, as what they
    cost is mostly the calls. `compute` and `state` wait for everything. For several threads.
    The result is NaN as long as one class has no samples (torchmetrics: 0), and when any score was NaN (there: lowest).

    Args:
        thresholds: T, at least 2.
        logits: whether scores are any real numbers, made probabilities by the logistic function. False: they are
            probabilities; what lies outside [0, 1] counts as 0 or 1.
    """

    def __init__(self, thresholds: int = 2000, *, logits: bool = True) -> None:
        if thresholds < 2:
            raise InvalidInput(f"AUC needs 2 thresholds or more, not {thresholds}")
        self._thresholds, self._logits = thresholds, logits
        self._counts: dict[torch.device, Tensor] = {}
        """Samples in cell 2·bin + class, on each device that scores came from. Bin 0 is for NaN."""
        self._edges: dict[torch.device, Tensor] = {}
        self._lock, self._counting = threading.Lock(), threading.RLock()  # of what waits, and of the counts
        self._waiting: list[tuple[Tensor, Tensor]] = []
        """Scores on the CPU, and which are of positive samples, that are still to be counted."""
        self._samples = 0
        """How many."""

    @torch.no_grad()
    def update(self, scores: Tensor, labels: Tensor) -> None:
        """Counts samples: scores and labels of one number of elements; a label above a half is positive.

        The scores must not change later.
        """
        if scores.numel() != labels.numel():
            raise InvalidInput(f"AUC needs a label for each score, not {labels.numel()} for {scores.numel()}")
        given = scores.detach().reshape(-1)
        positive = labels.detach().reshape(-1).to(scores.device, non_blocking=True) > 0.5
        if scores.device.type != "cpu":
            self._count(given, positive)
            return
        with self._lock:
            self._waiting.append((given, positive))
            self._samples += len(given)
        self._count_waiting(LATE)

    def count(self) -> None:
        """Counts what waits to be counted, if it is worth it: so that `update`, in another thread, need not."""
        self._count_waiting(1)

    def _count_waiting(self, times: int) -> None:
        if self._samples >= times * TOGETHER or len(self._waiting) >= times * TOGETHER_CALLS:
            self._count_all()

    @torch.no_grad()
    def _count_all(self) -> None:
        with self._counting:
            with self._lock:
                taken, self._waiting, self._samples = self._waiting, [], 0
            if taken:
                scores, positive = (torch.cat(column) for column in zip(*taken, strict=True))
                self._count(scores, positive)

    def _count(self, scores: Tensor, positive: Tensor) -> None:
        device = scores.device
        if device not in self._counts:
            self._counts[device] = torch.zeros(2 * self._thresholds + 2, dtype=torch.int64, device=device)
            self._edges[device] = torch.linspace(0, 1, self._thresholds, device=device)
        p = scores.float()
        p = (p.sigmoid() if self._logits else p.clamp(0, 1)).nan_to_num_(nan=-1.0)
        cell = torch.bucketize(p, self._edges[device], right=True).mul_(2).add_(positive)
        # Not bincount on GPUs: it waits for the device to learn the largest cell.
        if device.type == "cpu":
            self._counts[device] += torch.bincount(cell, minlength=len(self._counts[device]))
        else:
            self._counts[device].scatter_add_(0, cell, torch.ones_like(cell))

    def compute(self) -> float:
        """The AUC of all samples so far."""
        negatives, positives = self._histograms().double().unbind(1)
        pairs = float(positives.sum() * negatives.sum())
        if not pairs or float(positives[0] + negatives[0]):
            return math.nan
        below = negatives.cumsum(0) - negatives
        return float((positives * (below + negatives / 2)).sum()) / pairs

    def reset(self) -> None:
        """Forgets all samples."""
        with self._counting:
            self._count_all()
            for counts in self._counts.values():
                counts.zero_()

    def state(self) -> dict[str, Any]:
        """All there is to know, as plain numbers and lists, for checkpoints and other processes."""
        negatives, positives = self._histograms().unbind(1)
        return {"logits": self._logits, "negatives": negatives.tolist(), "positives": positives.tolist()}

    def load(self, state: dict[str, Any]) -> None:
        """Takes the place of what is counted so far."""
        loaded = self._checked(state)
        self.reset()
        self._add(loaded)

    def merge(self, state: dict[str, Any]) -> None:
        """Adds the samples of another, such as that of a replica."""
        self._add(self._checked(state))

    def _histograms(self) -> Tensor:
        """Samples by bin and class, on the CPU."""
        total = torch.zeros(2 * self._thresholds + 2, dtype=torch.int64)
        with self._counting:
            self._count_all()
            for counts in self._counts.values():
                total += counts.cpu()
        return total.view(-1, 2)

    def _checked(self, state: dict[str, Any]) -> Tensor:
        sizes = len(state["negatives"]), len(state["positives"])
        if sizes != (self._thresholds + 1,) * 2 or state["logits"] != self._logits:
            raise InvalidInput(
                f"the state of an AUC must have its {self._thresholds} thresholds and logits={self._logits}, "
                f"not {sizes[0] - 1} and logits={state['logits']}; make the AUC as the one that was saved"
            )
        return torch.tensor([state["negatives"], state["positives"]], dtype=torch.int64).T.reshape(-1)

    def _add(self, counts: Tensor) -> None:
        cpu = torch.device("cpu")
        with self._counting:
            self._count_all()  # which makes the counts, if there are none yet
            self._edges.setdefault(cpu, torch.linspace(0, 1, self._thresholds))
            self._counts[cpu] = self._counts.get(cpu, 0) + counts
