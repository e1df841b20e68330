"""An elastic run loses a machine, goes on by a smaller plan, and by its own when the machine is back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")

from heterps.runtime.restore import newest_checkpoint, restore
from tests.cluster.counting import BATCH, COUNTER, Gate, model
from tests.cluster.jobs import PATIENCE_S, wait_for
from tests.cluster.machines import Nodes, root
from tests.runtime.plain import rows_of

STEPS = 60
DRIVER = """
import json, sys
from functools import partial
from pathlib import Path
from heterps.runtime import Checkpoints, Settings
from heterps.runtime.cluster.engine import train_on_ray
from heterps.runtime.cluster.policy import Limits
from heterps.telemetry import JsonLines, Recorder
from tests.cluster.counting import factory, model
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan
address, path, steps = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
chain = model()
with Recorder([JsonLines(path / "telemetry.jsonl")]) as recorder:
    result = train_on_ray(
        chain, partial(factory, str(path / "gate"), steps), make_plan(chain, (2,), units=[3, 1]),
        Settings(
            steps=steps, micro_batches=4, optimizer=sgd, recorder=recorder,
            checkpoints=Checkpoints(path=path / "checkpoints", every_steps=5),
        ),
        address=address, replicas=[3, 1], shards=1, elastic=True, bring_back=False,
        limits=Limits(frozen_s=15.0, tries=10),
    )
(path / "result.json").write_text(json.dumps(result.to_dict()))
"""


def replans(path: Path) -> list[list[str]]:
    """The stages that the run went on by, one after the other."""
    lines = (path / "telemetry.jsonl").read_text().splitlines() if (path / "telemetry.jsonl").exists() else []
    records = [json.loads(line) for line in lines]
    return [record["fields"]["stages"] for record in records if record.get("name") == "replan"]


def saved(path: Path) -> int:
    latest = path / "checkpoints" / "latest"
    return int(latest.read_text().removeprefix("step-")) if latest.exists() else 0


def test_an_elastic_run_shrinks_and_grows_again(tmp_path: Path):
    Gate.open(tmp_path / "gate", 10)
    with Nodes(2) as machines:
        driver = subprocess.Popen(
            [sys.executable, "-c", DRIVER, machines.address, str(tmp_path), str(STEPS)], cwd=root(),
            env=machines.environment,
        )  # fmt: skip
        try:
            assert wait_for(lambda: saved(tmp_path) >= 10)
            machines.kill("node1")
            Gate.open(tmp_path / "gate", 30)
            assert wait_for(lambda: saved(tmp_path) >= 30)
            assert replans(tmp_path) == [["alpha × 1", "beta × 1"]]
            machines.start("node1")
            Gate.open(tmp_path / "gate", STEPS)
            driver.wait(2 * PATIENCE_S)
            assert driver.returncode == 0
        finally:
            driver.kill()
            driver.wait()
    assert replans(tmp_path) == [["alpha × 1", "beta × 1"], ["alpha × 3", "beta × 1"]]
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["steps"], result["stopped"]) == (STEPS, "done")
    assert [stage["units"] for stage in result["stages"]] == [3, 1]
    chain, newest = model(), newest_checkpoint(str(tmp_path / "checkpoints"))
    assert newest is not None
    restore(chain, newest)
    assert torch.equal(rows_of(chain, COUNTER, STEPS * BATCH).reshape(-1), torch.ones(STEPS * BATCH))
