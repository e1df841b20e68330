"""Loss and AUC of a chain on data it does not learn from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from heterps.errors import InvalidInput
from heterps.models import Bags, Chain, batch_size, run_layer
from heterps.models.batch import Value
from heterps.models.layer import SparseEmbedding
from heterps.runtime.feed import Feed
from heterps.telemetry.metrics import Auc


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation."""

    step: int
    samples: int
    loss: float
    auc: float | None

    @property
    def merit(self) -> float:
        """What gets larger as the model gets better: the AUC, or the loss turned round."""
        return self.auc if self.auc is not None and not math.isnan(self.auc) else -self.loss

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers; an AUC that is not defined (one class only) is None."""
        undefined = self.auc is not None and math.isnan(self.auc)
        return {**asdict(self), "auc": None if undefined else self.auc}


def evaluate(
    chain: Chain, data: Any, *, step: int = 0, batch_size: int = 4096, batches: int | None = None
) -> Evaluation:
    """The mean loss over the samples, and the AUC where the chain has a score. Changes neither weights nor tables.

    Args:
        chain: with its tables bound; its layers may lie on several devices.
        data: a source, or batches that can be read again and again.
        step: of the run, for the record.
        batch_size: samples at a time, for a source.
        batches: at most so many; None: all.
    """
    auc = Auc() if chain.score is not None and chain.label is not None else None
    was_training = chain.training
    chain.eval()
    total, samples = 0.0, 0
    try:
        with torch.no_grad(), Feed(data, batch_size=batch_size, epochs=1, seed=0, shuffle=False) as feed:
            for read in islice(feed, batches):
                values = _run(chain, read.batch)
                size = _size(read.batch)
                total += float(values[chain.loss]) * size
                samples += size
                if auc is not None:
                    auc.update(values[str(chain.score)].detach(), values[str(chain.label)])
    finally:
        chain.train(was_training)
    if samples == 0:
        raise InvalidInput("there is no data to evaluate on: it has no rows, or is an iterator that was read before")
    return Evaluation(step, samples, total / samples, auc.compute() if auc is not None else None)


def _size(batch: Mapping[str, Value]) -> int:
    return batch_size(batch)


def _run(chain: Chain, batch: Mapping[str, Value]) -> dict[str, Any]:
    """Every tensor by name, each layer on the device of its parameters, or of what it reads."""
    chain.check_batch(batch)
    values: dict[str, Any] = dict(batch)
    for layer in chain.layers:
        if isinstance(layer, SparseEmbedding):
            values.update(run_layer(layer, values))
            continue
        device = next((parameter.device for parameter in layer.parameters()), None)
        if device is None:
            written = [values[name].device for name in layer.reads if chain.writer(name) is not None]
            device = written[0] if written else torch.device("cpu")
        moved = {name: _moved(values[name], device) for name in layer.reads}
        values.update(run_layer(layer, moved))
    if chain.score is not None and chain.label is not None:
        values[chain.label] = _moved(values[chain.label], values[chain.score].device)
    return values


def _moved(value: Any, device: torch.device) -> Any:
    return value if isinstance(value, Bags) or not isinstance(value, Tensor) else value.to(device)
