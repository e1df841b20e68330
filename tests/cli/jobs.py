"""Small jobs, and what a run left of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from heterps.job import Job
from heterps.models import Chain
from heterps.plan import Plan
from heterps.runtime.restore import newest_checkpoint, restore
from heterps.store import SparseTable

JOB: dict[str, Any] = {
    "model": {"name": "ctrdnn", "args": {"dim": 4, "hidden": [8], "slots": 4, "dense": 3, "lr": 0.1}},
    "data": {"source": "synthetic", "rows": 4000, "ids": 500, "slots": 4, "dense": 3},
    "train": {"batch_size": 64, "steps": 20, "lr": 0.01},
}


def write_job(path: Path, **changes: Any) -> Path:
    """A job file; a changed section is merged into the usual one."""
    data = {**JOB, **{key: {**JOB.get(key, {}), **value} for key, value in changes.items()}}
    path.write_text(yaml.safe_dump(data))
    return path


def weights(run: Path) -> dict[str, Tensor]:
    """Dense weights, ids and rows of a run's newest checkpoint."""
    chain, _ = trained(run)
    found = {name: value.clone() for name, value in chain.state_dict().items()}
    for name, table in chain.tables.items():
        assert isinstance(table, SparseTable)
        ids = torch.cat([torch.from_numpy(ids.copy()) for ids, _, _ in table.scan()]).sort().values
        found[f"{name}.ids"], found[f"{name}.rows"] = ids, torch.as_tensor(table.pull(ids, create=False))
    return found


def trained(run: Path) -> tuple[Chain, Job]:
    """The chain as a run's newest checkpoint left it, and the run's job."""
    job = Job.load(run / "job.yaml")
    chain = job.build(job.sources()[0])
    checkpoint = newest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    restore(chain, checkpoint, seed=job.train.seed)
    return chain, job


def assert_same_weights(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def two_stage_plan(path: Path, *, device: str = "cpu", layers: int = 4) -> Path:
    """A plan of the usual job: the embedding on cores, the rest on one unit of `fast`."""
    types = {"cpu": {"device": "cpu", "price_per_hour": 0.04}, "fast": {"device": device, "price_per_hour": 2.0}}
    Plan.from_dict(
        {
            "format": "heterps.plan/1", "model": "ctrdnn", "method": "exact",
            "placement": ["cpu", *["fast"] * (layers - 1)], "types": types,
            "stages": [{"first": 0, "last": 0, "type": "cpu", "units": 2},
                       {"first": 1, "last": layers - 1, "type": "fast", "units": 1}],
            "predicted": {"throughput": 1000.0, "usd_per_hour": 3.6, "usd_per_million_samples": 1.0},
            "search": {"seconds": 0.1, "evaluations": 1, "optimal": True},
            "inputs": {"profile_sha256": "0", "cluster_sha256": "0", "min_throughput": 0.0},
        }
    ).save(path)  # fmt: skip
    return path
