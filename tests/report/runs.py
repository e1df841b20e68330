"""Run directories as `heterps run` leaves them, made without training: a plan that fits its files, and telemetry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from heterps.documents import to_yaml
from heterps.plan import Cluster, Plan, Profile
from heterps.schedule.comparison import compare_methods
from heterps.schedule.goal import Goal
from heterps.schedule.paper import paper_cluster, paper_profile
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem
from heterps.schedule.search import Settings

BATCH = 4096
EVIL = "</script><script>window.broken=1</script><img src=x onerror=window.broken=2>&quot;'\u2028"
"""A name that would run as a script, if it ever became markup."""
HERE = Cluster.from_dict({
    "types": {
        "cpu": {"device": "cpu", "price_per_hour": 0.04, "limit": 48, "bandwidth_gbps": 2},
        "v100": {"device": "cuda", "price_per_hour": 2.42, "limit": 1, "bandwidth_gbps": 100},
    }
})  # fmt: skip


def make_run(
    path: Path, *, steps: int = 400, rent: bool = True, ended: bool = True, planned: bool = True, evil: bool = False
) -> Path:
    """A run directory with every file, or, if not `planned`, with what training without a plan leaves."""
    path.mkdir(parents=True, exist_ok=True)
    name = EVIL if evil else "ctrdnn"
    job = {"model": {"name": name, "args": {"dim": 16}}, "data": {"source": "synthetic", "rows": 1_800_000},
           "train": {"batch_size": BATCH, "micro_batches": 4, "mode": "sync", "steps": steps}}  # fmt: skip
    (path / "job.yaml").write_text(to_yaml(job))
    (path / "environment.json").write_text(json.dumps({
        "heterps": "0.1.0", "python": "3.11.7", "torch": "2.6.0", "os": f"Debian GNU/Linux 12{EVIL if evil else ''}",
        "machine": "x86_64", "cpu": "AMD EPYC 9654", "cores": 8, "memory_bytes": 64 * 10**9,
        "gpus": [{"name": "Tesla V100-SXM2-32GB", "memory_bytes": 34 * 10**9}],
    }))  # fmt: skip
    stages = _planning(path, rent=rent, evil=evil) if planned else [{"type": "cpu", "units": 8}]
    write_telemetry(path / "telemetry.jsonl", records(steps=steps, stages=len(stages), ended=ended, evil=evil))
    if ended:
        (path / "result.json").write_text(json.dumps(_result(path, steps, stages, planned=planned)))
    return path


def _planning(path: Path, *, rent: bool, evil: bool) -> list[dict[str, Any]]:
    profile = paper_profile("ctrdnn")
    if evil:
        data = profile.to_dict()
        data["layers"][1]["name"] = data["model"] = EVIL
        profile = Profile.from_dict(data)
    profile.save(path / "profile.json")
    profile = Profile.load(path / "profile.json")
    plan = _plan(profile, HERE, path, Goal(min_throughput=200_000.0))
    compared = Problem(profile, HERE, Goal(min_throughput=200_000.0))
    if rent:
        goal = Goal(min_throughput=500_000.0)
        _plan(profile, paper_cluster(), path / "rent", goal)
        compared = Problem(profile, paper_cluster(), goal)
    methods = ["exact", "heuristic", "greedy", "only:cpu", "only:v100"]
    found = compare_methods(compared, methods=methods, settings=Settings(seed=0))
    (path / "comparison.json").write_text(found.to_json())
    return [stage.model_dump() for stage in plan.stages]


def _plan(profile: Profile, cluster: Cluster, path: Path, goal: Goal) -> Plan:
    path.mkdir(exist_ok=True)
    cluster.save(path / "cluster.yaml")
    plan = make_plan(Problem(profile, Cluster.load(path / "cluster.yaml"), goal))
    plan.save(path / "plan.json")
    return plan


def _result(path: Path, steps: int, stages: list[dict[str, Any]], *, planned: bool) -> dict[str, Any]:
    predicted = Plan.load(path / "plan.json").predicted if planned else None
    throughput = 0.93 * predicted.throughput if predicted is not None else 130_000.0
    cost = predicted.usd_per_hour / 3600 / throughput * 1e6 if predicted is not None else None
    return {
        "format": "heterps.result/1", "steps": steps, "samples": steps * BATCH, "loss": 0.4512, "auc": 0.7891,
        "eval_loss": 0.4533, "stopped": "done", "seconds": steps * BATCH / throughput, "skipped_rows": 0,
        "predicted": {"throughput": predicted.throughput if predicted else None,
                      "usd_per_million_samples": predicted.usd_per_million_samples if predicted else None},
        "measured": {"throughput": throughput, "usd_per_million_samples": cost},
        "stages": [{"type": stage["type"], "units": stage["units"], "predicted_s": None,
                    "measured_s": 0.0125 - 0.0015 * i, "busy": 0.99 - 0.12 * i} for i, stage in enumerate(stages)],
    }  # fmt: skip


def records(
    *, steps: int, first: int = 0, stages: int = 2, ended: bool = True, evil: bool = False, pause_at: int | None = None
) -> Iterator[dict[str, Any]]:
    """A session: a start, a pipeline's spans, curves, tables, an evaluation now and then, and an end."""
    t = 0.8
    table = EVIL if evil else "emb"
    yield {"t": 0.0, "kind": "event", "name": "start", "fields": {"format": "heterps.telemetry/1", "unix_s": 1.7e9}}
    for step in range(first, first + steps):
        for span in _step(step, t, stages, slow=1 + 0.15 * (step % 7 == 3)):
            yield span
            t = max(t, span["t"] + span["duration_s"])
        if step == pause_at or step % 100 == 99:
            yield {"t": t, "kind": "span", "name": "evaluate", "duration_s": 0.4, "step": step}
            t += 0.4
            yield _scalar(t, "eval/loss", 0.45 + 0.2 / (1 + step / 60), step + 1)
            yield _scalar(t, "eval/auc", 0.79 - 0.2 / (1 + step / 60), step + 1)
        if step % 5 == 4:
            wobble = 0.012 * ((step * 7919) % 13 - 6) / 6
            yield _scalar(t, "loss", 0.44 + 0.25 / (1 + step / 40) + wobble, step + 1)
            yield _scalar(t, "auc", 0.78 - 0.28 / (1 + step / 40), step + 1)
        if step % 20 == 19:
            rows = int(900_000 * (1 - 0.99 ** (step / 4)))
            for figure, value in (("rows", rows), ("bytes", 148 * rows), ("hits", 106_496 * (step + 1) - rows),
                                  ("creations", rows)):  # fmt: skip
                yield _scalar(t, f"table/{table}/{figure}", value, step + 1)
    if ended:
        yield {"t": t, "kind": "event", "name": "end", "fields": {"dropped": 0}}


def _step(step: int, t: float, stages: int, *, slow: float) -> Iterator[dict[str, Any]]:
    """Four micro-batches: forwards down the pipeline, the last stage at once back, then backwards, then updates."""
    forward, both, backward, update = 0.003 * slow, 0.0055 * slow, 0.0032, 0.0015
    free = [t] * stages
    ready = []
    for m in range(4):
        at = t
        for stage in range(stages):
            begin, last = max(at, free[stage]), stage == stages - 1
            length = both if last else forward
            free[stage] = at = begin + length
            yield _span("forward", begin, length, stage, step, m)
        ready.append(at)
    for stage in range(stages - 2, -1, -1):
        for m in range(4):
            begin = max(ready[m], free[stage])
            free[stage] = ready[m] = begin + backward
            yield _span("backward", begin, backward, stage, step, m)
    for stage in range(stages):
        yield _span("update", free[stage], update, stage, step, None)


def _span(name: str, t: float, length: float, stage: int, step: int, micro_batch: int | None) -> dict[str, Any]:
    span = {"t": t, "kind": "span", "name": name, "duration_s": length, "stage": stage, "step": step}
    return span if micro_batch is None else {**span, "micro_batch": micro_batch}


def _scalar(t: float, name: str, value: float, step: int) -> dict[str, Any]:
    return {"t": t, "kind": "scalar", "name": name, "value": value, "step": step}


def write_telemetry(path: Path, lines: Iterable[dict[str, Any]], *, append: bool = False) -> None:
    with path.open("a" if append else "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
