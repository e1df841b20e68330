"""What a picked plan costs beside plain PyTorch, at catalog prices, on a machine with a GPU.

    python benchmarks/money.py [--batch N] [--goal SAMPLES_A_SECOND]

ctrdnn, 2 million rows, ids in the host's memory (uniform, and Zipf 1.05). The plan is the one `heterps run` picks for
this machine: every layer measured, the cheapest placement that meets the goal. Beside it plain PyTorch
(`nn.Embedding(sparse=True)`, Adagrad for rows, Adam for the rest) on all cores, and on the GPU. Subjects take turns;
what each uses is paid for by the hour: all cores at the catalog's price of a core, the GPU at that of its offer, which
has its host's cores in it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import statistics
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

from train import Subject
from train_subject import batches

from heterps import catalog as catalogs
from heterps.loop.here import cluster_here
from heterps.loop.planning import Planned, simplest
from heterps.models import zoo
from heterps.profile.assemble import assemble
from heterps.profile.measure import Efforts, measure
from heterps.profile.sweep import Effort
from heterps.runtime.settings import Settings
from heterps.schedule.goal import Goal
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem

ROUNDS = 4
EFFORTS = Efforts(layers=Effort(seconds=1.5), whole=Effort(seconds=2.0), small=Effort(seconds=0.5))


def main() -> None:
    """Plans, measures in turns, prints and files the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=65536)
    parser.add_argument("--goal", type=float, default=1e6)
    given = parser.parse_args()
    catalog = catalogs.load()
    lines = [
        f"# Money and throughput beside plain PyTorch, {datetime.date.today()}", "",
        f"`python benchmarks/money.py`; ctrdnn, batch {given.batch:,}, goal {given.goal:,.0f} samples a second, median "
        f"of {ROUNDS} rounds of turns.", "",
    ]  # fmt: skip
    for ids in ("zipf", "uniform"):
        base = {"rows": 2_000_000, "batch": given.batch, "hidden": [400, 400, 400], "ids": ids}
        held = batches(base)
        measured = measure(zoo.build("ctrdnn"), held, Settings(batch_size=given.batch, mode="async"), served=False,
                           efforts=EFFORTS)  # fmt: skip
        cluster = cluster_here(measured.hardware, measured.links, catalog)
        problem = Problem(assemble(measured, cluster, catalog=catalog), cluster, Goal(min_throughput=given.goal))
        picked = simplest(Planned(problem, make_plan(problem)))
        lines += table(ids, base, picked, cores=measured.hardware.cores, core_usd=cluster.types["cpu"].price_per_hour)
    text = "\n".join(lines) + "\n"
    print(text)
    folder = Path(os.environ.get("OUT", Path(__file__).parent / "results"))
    (folder / f"money-{datetime.date.today()}.md").write_text(text)


def table(ids: str, base: dict[str, object], picked: Planned, *, cores: int, core_usd: float) -> list[str]:
    """Throughput and dollars of the picked plan and of plain PyTorch."""
    cluster, plan = picked.problem.cluster, picked.plan
    gpu = next(kind for kind in cluster.types.values() if kind.device == "cuda")
    devices = [cluster.types[stage.type].device for stage in plan.stages]
    placement = {("cuda",): "gpu", ("cpu", "cuda"): "cpu+gpu", ("cpu",): "cpu"}[tuple(devices)]
    threads = max([stage.units for stage in plan.stages if cluster.types[stage.type].device == "cpu"], default=1)
    subjects = {
        Subject(f"heterps, picked: {placement}", subject="heterps", placement=placement, threads=threads, **base):
            plan.predicted.usd_per_hour,
        Subject("plain PyTorch on the cores", subject="plain", threads=cores, slow=30, **base): cores * core_usd,
        Subject("plain PyTorch on the GPU", subject="plain", device="cuda", fused=True, threads=cores, slow=6, **base):
            gpu.price_per_hour,
    }  # fmt: skip
    rates: dict[str, list[float]] = {subject.name: [] for subject in subjects}
    for number in range(ROUNDS + 1):
        for subject in subjects:
            seconds = subject.run(60)
            if number:
                rates[subject.name].append(int(str(base["batch"])) / seconds)
    lines = [f"ids: {ids}; predicted for the picked plan: {plan.predicted.throughput:,.0f}", "",
             "| subject | samples/s | $/h | $/M samples | throughput against the cores | cost against the cores |",
             "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    found = {}
    for subject, usd in subjects.items():
        rate = statistics.median(rates[subject.name])
        found[subject.name] = rate, usd / 3600 / rate * 1e6
        subject.close()
    slow, dear = found["plain PyTorch on the cores"]
    for subject, usd in subjects.items():
        rate, cost = found[subject.name]
        lines.append(
            f"| {subject.name} | {rate:,.0f} | {usd:.3f} | {cost:.5f} | {rate / slow:.1f}× | 1/{dear / cost:.1f} |"
        )
    return [*lines, ""]


if __name__ == "__main__":
    main()
