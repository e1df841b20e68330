"""How well throughput is predicted: plans that are profiled, predicted, run, calibrated and run again.

    python benchmarks/prediction.py [--quick] [--gpu] [--seconds S]

Every (model, batch size) is measured once, as `heterps profile` does; the plans of a model are predicted from that one
measurement and then run, one after the other. "calibrated" is the prediction after the plan's own first run was fed
back, as `heterps calibrate` does, against a second run. The pick is what `heterps run` chooses over the same types
without a throughput goal, and its dollars are compared with the best plan of the same model in the table.

On two cores a plan of several stages needs two types of cores: `a` and `b`, at the same price. With --gpu: plans on the
cores alone, on the GPU alone, and rows on the cores with the rest on the GPU, at catalog prices.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

from heterps import catalog as catalogs
from heterps.data import make_source
from heterps.loop.comparing import calibrated, predicted
from heterps.loop.here import cluster_here
from heterps.loop.planning import Planned, simplest
from heterps.models import Chain, zoo
from heterps.plan import Cluster, Plan, ResourceType
from heterps.profile.assemble import assemble
from heterps.profile.hardware import here
from heterps.profile.measure import measure
from heterps.profile.measurement import Measurement
from heterps.runtime import train
from heterps.runtime.settings import Settings
from heterps.schedule.cost import evaluate, stage_runs
from heterps.schedule.goal import Goal
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem

CATALOG = catalogs.load()
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan of a model: `stages` are (type, layers, units); layers below 0 count from the end, 0 are the rest."""

    model: str
    args: dict[str, Any]
    batch: int
    stages: Sequence[tuple[str, int, int]]
    mode: str = "async"
    micro_batches: int = 1
    staleness: int | None = None

    @property
    def job(self) -> tuple[str, str, int, int]:
        """What one measurement serves."""
        return self.model, repr(sorted(self.args.items())), self.batch, self.micro_batches

    def settings(self) -> Settings:
        """Of the run."""
        stale = (2 if len(self.stages) > 1 else 1) if self.staleness is None else self.staleness
        return Settings(batch_size=self.batch, mode=self.mode, micro_batches=self.micro_batches,
                        staleness=stale if self.mode == "async" else None)  # type: ignore[arg-type]  # fmt: skip

    def goal(self) -> Goal:
        """Any throughput will do."""
        mode: Any = {"mode": "sync", "micro_batches": self.micro_batches} if self.mode == "sync" else {}
        return Goal(min_throughput=0.0, **mode)

    def placement(self, layers: int) -> tuple[list[str], list[int]]:
        """Type of each layer, and units of each stage."""
        counts = [count for _, count, _ in self.stages]
        left = layers - sum(counts)
        whole = [count or left for count in counts]
        placed = [name for (name, _, _), count in zip(self.stages, whole, strict=True) for _ in range(count)]
        return placed, [units for _, _, units in self.stages]

    def __str__(self) -> str:
        way = f"{self.mode}" + (f", {self.micro_batches} micro-batches" if self.micro_batches > 1 else "")
        return f"{self.model} {self.batch:,}, {way}"


def two_cores() -> tuple[list[Case], Cluster]:
    """Three models of the zoo, several batch sizes, one to three stages."""
    core = CATALOG.get("cpu").price_per_hour
    cpu = ResourceType(device="cpu", price_per_hour=core, limit=2)
    one = ResourceType(device="cpu", price_per_hour=core, limit=1)
    ctr: dict[str, Any] = {"model": "ctrdnn", "args": {}}
    wide: dict[str, Any] = {"model": "wide-and-deep", "args": {"hidden": [256, 128]}}
    cases = [
        Case(**ctr, batch=4096, stages=[("cpu", 0, 1)]),
        Case(**ctr, batch=4096, stages=[("cpu", 0, 2)]),
        Case(**ctr, batch=4096, stages=[("a", 2, 1), ("b", 0, 1)]),
        Case(**ctr, batch=1024, stages=[("a", 3, 1), ("b", 0, 1)]),
        Case(**ctr, batch=4096, micro_batches=4, mode="sync", stages=[("a", 3, 1), ("b", 0, 1)]),
        Case(model="dlrm", args={}, batch=2048, stages=[("a", 5, 1), ("b", 0, 1)]),
        Case(model="dlrm", args={}, batch=2048, stages=[("cpu", 0, 1)]),
        Case(model="dlrm", args={}, batch=2048, stages=[("cpu", 0, 2)]),
        Case(**wide, batch=2048, stages=[("a", 3, 1), ("b", 0, 1)]),
        Case(**wide, batch=8192, stages=[("a", 2, 1), ("b", 1, 1), ("a", 0, 1)]),
    ]  # fmt: skip
    return cases, Cluster(types={"cpu": cpu, "a": one, "b": one})


def with_gpu() -> tuple[list[Case], Cluster]:
    """Cores alone, the GPU alone, and both."""
    hardware = here()
    cluster = cluster_here(hardware, None, CATALOG)
    gpu, cores = next(name for name in cluster.types if name != "cpu"), hardware.cores - 1
    cases = []
    for model, batch in (("ctrdnn", 65536), ("ctrdnn", 8192), ("dlrm", 16384), ("wide-and-deep", 32768)):
        base = Case(model=model, args={}, batch=batch, stages=[("cpu", 0, cores)])
        rows = 2 if model == "wide-and-deep" else 1
        cases += [base, replace(base, stages=[(gpu, 0, 1)]),
                  replace(base, stages=[("cpu", rows, cores), (gpu, 0, 1)], staleness=4)]  # fmt: skip
    return cases, cluster


def data_of(case: Case, *, held: bool) -> Any:
    """Click data; `held` in memory, where reading would set the pace."""
    source = make_source({"source": "synthetic", "rows": max(400_000, 12 * case.batch), "ids": 1_000_000})
    if not held:
        return source
    with source.reader(batch_size=case.batch, drop_last=True) as reader:
        return [read.batch for read in reader][:12]


def plan_of(case: Case, measured: Measurement, cluster: Cluster) -> Planned:
    """The case's plan, with its prediction."""
    goal = case.goal()
    problem = Problem(assemble(measured, cluster, catalog=CATALOG), cluster, goal)
    placement, units = case.placement(len(measured.layers))
    got = evaluate(problem.profile, cluster, placement, units, 0, goal=goal)
    return Planned(problem, Plan.from_dict({
        "format": "heterps.plan/1", "model": case.model, "method": "given", "placement": placement,
        "types": {name: {"device": kind.device, "price_per_hour": kind.price_per_hour}
                  for name, kind in cluster.types.items() if name in placement},
        "stages": [{"first": first, "last": last, "type": name, "units": k}
                   for (first, last, name), k in zip(stage_runs(placement), units, strict=True)],
        "parameter_server": None,
        "predicted": {"throughput": got.throughput, "usd_per_hour": got.usd_per_hour,
                      "usd_per_million_samples": got.usd_per_sample * 1e6},
        "search": {"seconds": 0.0, "evaluations": 0, "optimal": False},
        "inputs": {"profile_sha256": problem.profile.sha256, "cluster_sha256": cluster.sha256, "min_throughput": 0.0},
    }))  # fmt: skip


def run(chain: Chain, case: Case, planned: Planned, data: Any, seconds: float) -> tuple[float, list[float]]:
    """Samples a second, and each stage's seconds for a step, of a run of about so many seconds."""
    steps = max(30, int(seconds * planned.plan.predicted.throughput / case.batch))
    settings = case.settings()
    result = train(chain, data, planned.plan, steps=steps, batch_size=case.batch, mode=settings.mode,
                   staleness=settings.staleness, micro_batches=settings.micro_batches)  # fmt: skip
    took = [stage.measured_s for stage in result.stages]
    was = [f"{seconds * 1e3:.3g}" for seconds in planned.stage_seconds()]
    print(f"  stages, ms: predicted {was}, measured {[f'{seconds * 1e3:.3g}' for seconds in took]}", flush=True)
    return result.throughput, took


@dataclass(frozen=True)
class Row:
    """One plan: samples a second, predicted and measured, before and after calibration."""

    case: Case
    planned: Planned
    first: float
    corrected: float
    second: float

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was measured."""
        return self.planned.plan.predicted.throughput / self.first - 1

    @property
    def error_after(self) -> float:
        """Of the calibrated prediction, against the second run."""
        return self.corrected / self.second - 1

    @property
    def usd_per_million(self) -> float:
        """By what was measured in both runs."""
        return self.planned.plan.predicted.usd_per_hour / 3600 / statistics.mean([self.first, self.second]) * 1e6


def main() -> None:
    """Runs all cases and files the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run")
    arguments = parser.parse_args()
    cases, cluster = with_gpu() if arguments.gpu else two_cores()
    seconds = 2.0 if arguments.quick else arguments.seconds
    measured: dict[Any, Measurement] = {}
    rows = []
    for case in cases:
        data = data_of(case, held=arguments.gpu)
        chain = zoo.build(case.model, **case.args)
        if case.job not in measured:
            measured[case.job] = measure(chain, data, case.settings(), served=False)
            for layer in measured[case.job].layers:
                times = {k: f"{s * 1e3:.3g}" for k, s in (layer.crossing_s or layer.cpu_s).items()}
                on_gpu = "" if layer.gpu_s is None else f", GPU {layer.gpu_s * 1e3:.3g}"
                print(f"  {layer.name}: ms on cores {times}{on_gpu}", flush=True)
        if arguments.gpu:
            cluster = cluster_here(measured[case.job].hardware, measured[case.job].links, CATALOG)
        planned = plan_of(case, measured[case.job], cluster)
        first, took = run(chain, case, planned, data, seconds)
        better = calibrated(measured[case.job], planned, measured_s=took, throughput=first, catalog=CATALOG)
        corrected = predicted(better, planned, CATALOG).throughput
        second, _ = run(zoo.build(case.model, **case.args), case, planned, data, seconds)
        rows.append(Row(case, planned, first, corrected, second))
        print(_line(rows[-1]), flush=True)
    text = _table(rows, measured, cluster)
    print(text)
    kind = "prediction-gpu" if arguments.gpu else "prediction"
    if not arguments.quick:
        path = Path(os.environ.get("OUT", RESULTS)) / f"{kind}-{datetime.date.today()}.md"
        path.write_text(text)


def _line(row: Row) -> str:
    stages = " → ".join(f"{stage.units} {stage.type}" for stage in row.planned.plan.stages)
    was = row.planned.plan.predicted.throughput
    return (
        f"| {row.case} | {stages} | {was:,.0f} | {row.first:,.0f} | {row.error:+.1%} | "
        f"{row.corrected:,.0f} | {row.second:,.0f} | {row.error_after:+.1%} | {row.usd_per_million:.5f} |"
    )


def _table(rows: Sequence[Row], measured: dict[Any, Measurement], cluster: Cluster) -> str:
    machine = next(iter(measured.values())).hardware.identity
    lines = [
        f"# Predicted and measured throughput, {datetime.date.today()}", "",
        f"`python {' '.join(sys.argv)}` on {machine}. Samples a second.", "",
        "| model, batch, mode | plan | predicted | measured | off | calibrated | measured again | off | $/M |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |", *map(_line, rows), "",
    ]  # fmt: skip
    several = [row for row in rows if len(row.planned.plan.stages) > 1]
    for what, some in (("all plans", rows), ("plans of two and more stages", several)):
        before, after = (statistics.median(map(abs, each)) for each in
                         ([row.error for row in some], [row.error_after for row in some]))  # fmt: skip
        lines.append(f"Median over {len(some)} ({what}): {before:.1%} off, {after:.1%} after calibration.")
    lines += [
        "",
        "The pick, and the best plan of the same job in the table, by measured dollars a million samples:",
        "",
    ]
    for job, own in measured.items():
        lines.append(_pick(job, own, [row for row in rows if row.case.job == job], cluster))
    return "\n".join(lines) + "\n"


def _pick(job: Any, measured: Measurement, rows: Sequence[Row], cluster: Cluster) -> str:
    """The pick over the table's types, if it is among the plans that were run."""
    goal = rows[0].case.goal()
    problem = Problem(assemble(measured, cluster, catalog=CATALOG), cluster, goal)
    plan = simplest(Planned(problem, make_plan(problem, method="exact"))).plan
    best = min(rows, key=lambda row: row.usd_per_million)
    shape = [(stage.first, stage.last, cluster.types[stage.type].device, stage.units) for stage in plan.stages]
    same = [row for row in rows if shape == [(stage.first, stage.last, cluster.types[stage.type].device, stage.units)
                                             for stage in row.planned.plan.stages]]  # fmt: skip
    what = " → ".join(f"{stage.units} {stage.type}" for stage in plan.stages)
    if not same:
        return f"- {job[0]} {job[2]:,}: {what}, not among those that were run"
    return f"- {job[0]} {job[2]:,}: {what}, {same[0].usd_per_million / best.usd_per_million - 1:+.1%} above the best"


if __name__ == "__main__":
    main()
