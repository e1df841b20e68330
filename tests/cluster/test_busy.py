"""A replica that waits for its twin is not busy, and so no straggler."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heterps.models import Chain
from tests.cluster.inprocess import run_here
from tests.runtime.chains import random_batches, small
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan

WORK_S = (0.02, 0.1, 0.5)
"""Of a micro-batch; more where the machine did so much else that the little work of the others took as long."""


def slow_tower(work_s: float) -> Chain:
    """The second layer after the rows takes its time, as a large one does."""
    chain = small()
    layer = chain.layers[2]
    own = layer.forward

    def forward(*values: Any) -> Any:
        time.sleep(work_s)
        return own(*values)

    layer.forward = forward  # type: ignore[method-assign]
    return chain


def test_the_wait_for_a_gathered_push_is_not_work(tmp_path: Path):
    """The first replica has its gradients first, and waits for the other one's part before it has the next rows."""
    shares = []
    for work_s in WORK_S:
        _, _, done = run_here(
            partial(slow_tower, work_s), random_batches(12), make_plan(5, (1,), units=[2, 1]), steps=12,
            micro_batches=2, shards=1, replicas=[2, 1], path=tmp_path / str(work_s), optimizer=sgd,
        )  # fmt: skip
        first, second, tower = (progress.busy_s for progress in done)
        assert tower > 24 * work_s
        shares.append(max(first, second) / tower)
        if shares[-1] < 0.25:  # the wait alone is half of it
            return
    pytest.fail(f"of the time of those that wait, work is {shares}")
