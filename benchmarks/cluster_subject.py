"""heterps on an engine, in a process of its own, timed on request. Started by `cluster.py`.

    python cluster_subject.py '{"engine": "ray", "rows": 2000000, "batch": 4096, "threads": 2, "hidden": [64, 32]}'

Answers each line on standard input, `{"steps": n, "mode": "sync", "cuts": [1]}`, with the seconds that n steps took.
Layers are cut into stages before those named, each on an equal part of the threads. Each time a run starts anew; the
clock runs in whoever reads the data, from a batch when all rows are there to the n-th after it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from clicks import batches

import heterps
from heterps.models import Chain, zoo
from heterps.plan import Plan

DISTINCT = 8
"""Batches, used again and again."""
WARM_UP = 3 * DISTINCT
"""Steps before those that are timed: all rows are there by then, and pipelines are full."""
MICRO_BATCHES = 4
"""Of a step of several stages in sync mode: they work at the same time on one step."""


class Timed:
    """Batches without end, and a clock between the first and the last of those that count."""

    def __init__(self, spec: dict[str, Any], steps: int, clocks: Path) -> None:
        made = batches(rows=spec["rows"], size=spec["batch"], count=DISTINCT, ids=spec["ids"])
        self._batches = [{name: torch.from_numpy(array) for name, array in batch.items()} for batch in made]
        self._steps, self._clocks = steps, clocks

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        began, number = 0.0, 0
        while True:
            if number == WARM_UP:
                began = time.perf_counter()
            if number == WARM_UP + self._steps:
                (self._clocks / str(os.getpid())).write_text(str(time.perf_counter() - began))
            yield self._batches[number % DISTINCT]
            number += 1


def make(spec: dict[str, Any], steps: int, clocks: Path) -> tuple[Chain, Timed]:
    """The model and the data; every process of a cluster makes them for itself."""
    torch.manual_seed(0)
    tower = {"hidden": tuple(spec["hidden"])} if "hidden" in spec else {}
    chain = zoo.build(spec["model"], dim=spec["dim"], **tower)
    return chain, Timed(spec, steps, clocks)


def plan(spec: dict[str, Any], layers: int) -> Plan:
    """All threads as units, shared out among the stages; the server is of one unit."""
    bounds = [0, *spec["cuts"], layers]
    names = [f"cpu{number}" for number in range(len(bounds) - 1)]
    units = max(1, spec["threads"] // len(names))
    stages = [
        {"first": first, "last": last - 1, "type": name, "units": units}
        for name, first, last in zip(names, bounds, bounds[1:], strict=False)
    ]
    return Plan.model_validate({
        "format": "heterps.plan/1", "model": spec["model"], "method": "fixed",
        "placement": [stage["type"] for stage in stages for _ in range(stage["first"], stage["last"] + 1)],
        "types": {name: {"device": "cpu", "price_per_hour": 0.04} for name in names}, "stages": stages,
        "parameter_server": {"type": names[0], "units": 1},
        "predicted": {"throughput": 1.0, "usd_per_hour": 1.0, "usd_per_million_samples": 1.0},
        "search": {"seconds": 0.0, "evaluations": 0, "optimal": False},
        "inputs": {"profile_sha256": "", "cluster_sha256": "", "min_throughput": 0.0},
    })  # fmt: skip


def run(spec: dict[str, Any], steps: int) -> float:
    """Seconds for so many steps."""
    scratch = Path(tempfile.mkdtemp(prefix="heterps-bench-"))
    clocks = scratch / "clocks"
    clocks.mkdir()
    try:
        chain, data = make(spec, steps, clocks)
        options: dict[str, Any] = {"mode": spec["mode"], "steps": WARM_UP + steps + 1}
        if spec["mode"] == "sync" and spec["cuts"]:
            options["micro_batches"] = MICRO_BATCHES
        if spec["engine"] == "local":
            heterps.train(chain, data, plan=plan(spec, len(chain.layers)), **options)
        else:
            _on_ray(spec, chain, partial(make, spec, steps, clocks), scratch / "checkpoints", options)
        return max(float(file.read_text()) for file in clocks.iterdir())
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _on_ray(spec: dict[str, Any], chain: Chain, factory: Any, checkpoints: Path, options: dict[str, Any]) -> None:
    from heterps.runtime.checkpoint import Checkpoints
    from heterps.runtime.cluster.engine import train_on_ray
    from heterps.runtime.settings import Settings

    replicas = spec["workers"] // (len(spec["cuts"]) + 1)
    settings = Settings(checkpoints=Checkpoints(path=checkpoints, every_minutes=None), **options)
    made = plan(spec, len(chain.layers))
    train_on_ray(chain, factory, made, settings, replicas=replicas, shards=1, bring_back=False)


def main() -> None:
    """Answers requests until standard input ends."""
    spec = {"dim": 16, "ids": "zipf", "workers": 2, "model": "ctrdnn", **json.loads(sys.argv[1])}
    if spec["engine"] == "ray":
        import ray

        # actors find this file's functions by name; the server has no core of its own, but shares those of the replicas
        ray.init(
            address="local", num_cpus=spec["threads"] + 1, include_dashboard=False, log_to_driver=False,
            logging_level="ERROR", runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
        )  # fmt: skip
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer: dict[str, Any] = {"seconds": run({**spec, **request}, request["steps"])}
        except Exception as error:  # what one line of a table cannot do, another one can
            answer = {"failure": f"{type(error).__name__}: {error}".splitlines()[0]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
