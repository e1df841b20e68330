"""A job's measurement, from the cache or made anew, and the cluster it is planned for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from heterps.catalog import Catalog, cluster_of
from heterps.job import Job
from heterps.plan import Cluster, Plan, ResourceType
from heterps.profile.cache import load_measurement, measurement_key, save_measurement
from heterps.profile.hardware import here
from heterps.profile.measure import Efforts, OnProgress, measure
from heterps.profile.measurement import Measurement
from heterps.schedule.paper import paper_cluster


def measure_job(
    job: Job,
    *,
    fresh: bool = False,
    efforts: Efforts = Efforts(),  # noqa: B008
    on_progress: OnProgress = lambda *_: None,
) -> tuple[Measurement, bool]:
    """What the job's layers cost on this machine, and whether that came from the cache.

    Args:
        job: names the model, the data and how to train.
        fresh: measure again even if there is a measurement of the same model, data's shape and hardware.
        efforts: how long to measure.
        on_progress: told what is being measured.
    """
    data, _ = job.sources()
    chain = job.build(data)
    example = job.example(data)
    chain.check_batch(example)
    settings = job.settings()
    key = measurement_key(chain, example, settings, here(), source=str(job.data.get("source")))
    kept = None if fresh else load_measurement(key)
    if kept is not None:
        return kept, True
    measured = measure(chain, data, settings, key=key, efforts=efforts, on_progress=on_progress)
    try:
        save_measurement(measured)
    except OSError as error:
        warnings.warn(f"the measurement is not kept: {error}", stacklevel=2)
    return measured, False


def cluster_of_job(job: Job, catalog: Catalog) -> Cluster | None:
    """The cluster that a job names: a file, one written inline, catalog names, or the paper's; None for none."""
    with job.naming("cluster"):
        if isinstance(job.cluster, tuple | list):
            return cluster_of(list(job.cluster), catalog=catalog)
        return paper_cluster() if job.cluster == "paper" else job.load_cluster()


def cluster_of_plan(plan: Plan) -> Cluster:
    """The types of a plan as a cluster, with as many units as it uses: what its prediction is laid out on."""
    units: dict[str, int] = {}
    for stage in plan.stages:
        units[stage.type] = units.get(stage.type, 0) + stage.units
    server = plan.parameter_server
    if server is not None:
        units[server.type] = units.get(server.type, 0) + server.units
    types: Mapping[str, ResourceType] = {
        name: ResourceType(device=kind.device, price_per_hour=kind.price_per_hour, limit=max(1, units.get(name, 1)))
        for name, kind in plan.types.items()
    }
    return Cluster(types=types, parameter_server=server.type if server is not None else None)


def job_samples(job: Job) -> float | None:
    """Samples that the whole job trains on; None if only reading all data would tell."""
    train = job.train
    if train.steps is not None:
        return float(train.steps) * train.batch_size
    rows = job.data.get("rows") if job.data.get("source") == "synthetic" else None
    return None if rows is None else float(rows) * (1 - job.eval.fraction) * (train.epochs or 1)
