"""Layers that draw (dropout) on a real Ray cluster, where every replica has a generator of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")

from heterps.models import Chain, Layer
from heterps.runtime import Checkpoints, Settings, train
from heterps.runtime.cluster.engine import train_on_ray
from tests.runtime.chains import DENSE, DIM, SLOTS, embedding, fc, loss, random_batches, seeded
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan

pytestmark = pytest.mark.usefixtures("cluster")
STEPS = 12


@seeded
def drawing() -> Chain:
    """With dropout in both stages, if it is cut at 3."""
    return Chain(
        embedding("rows"),
        fc("fc1", ["rows", "dense"], SLOTS * DIM + DENSE, 16),
        Layer("early", nn.Dropout(0.5), reads="fc1", writes="early"),
        fc("fc2", "early", 16, 8),
        Layer("late", nn.Dropout(0.5), reads="fc2", writes="late"),
        fc("logit", "late", 8, 1, relu=False),
        loss(),
    )


def drawing_model() -> tuple[Any, Any]:
    return drawing(), random_batches(STEPS)


def test_several_stages_and_micro_batches_draw_as_in_engine_local(tmp_path: Path):
    """Whichever replica has a micro-batch."""
    chain, replicas = drawing(), [2, 1]
    local = train(drawing(), random_batches(STEPS), make_plan(7, (3,)), steps=STEPS, micro_batches=3, optimizer=sgd)
    settings = Settings(steps=STEPS, micro_batches=3, optimizer=sgd, checkpoints=Checkpoints(path=tmp_path))
    plan = make_plan(7, (3,), units=replicas)
    result = train_on_ray(chain, drawing_model, plan, settings, replicas=replicas, shards=1)
    torch.testing.assert_close(torch.tensor(result.losses), torch.tensor(local.losses), rtol=1e-4, atol=1e-6)
