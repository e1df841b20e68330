"""The hardware of this machine as a cluster, and what of a plan it can run."""

from __future__ import annotations

from collections.abc import Sequence

from heterps.catalog import Catalog, cluster_of
from heterps.errors import InvalidInput
from heterps.job import Job
from heterps.loop.measuring import cluster_of_job
from heterps.plan import Cluster, Plan, ResourceType
from heterps.profile.assemble import HERE_CPU, Hand, find_type
from heterps.profile.hardware import Hardware
from heterps.profile.links import Links


def cluster_here(
    hardware: Hardware, links: Links | None, catalog: Catalog, *, prices: Cluster | None = None
) -> Cluster:
    """This machine's cores, and its GPU if it has one, at the catalog's prices for the like, or those of `prices`.

    One process runs a stage on one GPU, so there is one to plan with. Tables are in that process: no server.
    """
    core = catalog.get("cpu")
    types = {
        HERE_CPU: ResourceType(device="cpu", price_per_hour=core.price_per_hour, limit=hardware.cores,
                               memory_gb=hardware.memory_gb / hardware.cores)
    }  # fmt: skip
    for gpu in hardware.gpus[:1]:
        known = catalog.find(accelerator=gpu.model)
        price = catalog.get(gpu.model).price_per_hour if known else core.price_per_hour
        bandwidth = links.host_to_device_gbps if links is not None else None
        types[gpu.model] = ResourceType(
            device="cuda", price_per_hour=price, limit=1, memory_gb=gpu.memory_gb, bandwidth_gbps=bandwidth
        )
    named = prices.types if prices is not None else {}
    return Cluster(types={
        name: kind.model_copy(update={"price_per_hour": named[name].price_per_hour}) if name in named else kind
        for name, kind in types.items()
    })  # fmt: skip


def profiled_types(
    job: Job, hardware: Hardware, links: Links | None, catalog: Catalog, *, names: Sequence[str] | None = None
) -> Cluster:
    """The types to profile a job on: those named, of this machine or the catalog; else the job's and those here."""
    here = cluster_here(hardware, links, catalog)
    if names is not None:
        others = [name for name in names if name not in here.types]
        if not names:
            raise InvalidInput("types: name at least one, such as cpu")
        found = {**here.types, **(cluster_of(others, catalog=catalog).types if others else {})}
        return Cluster(types={name: found[name] for name in (text.partition(":")[0] for text in names)})
    cluster = cluster_of_job(job, catalog)
    if cluster is None:
        return here
    return Cluster(types={**here.types, **cluster.types}, parameter_server=cluster.parameter_server)


def missing(plan: Plan, cluster: Cluster, hardware: Hardware, catalog: Catalog) -> dict[str, int]:
    """Type -> units of the plan that this machine lacks; empty if it can run as it is.

    Types of one device share it: two that are both cores count together.
    """
    needed: dict[str, int] = {}
    for stage in plan.stages:
        needed[stage.type] = needed.get(stage.type, 0) + stage.units
    if plan.parameter_server is not None and plan.parameter_server.units:
        server = plan.parameter_server
        needed[server.type] = needed.get(server.type, 0) + server.units
    left = {"cpu": hardware.cores, "cuda": sum(gpu.count for gpu in hardware.gpus[:1])}
    lacking = {}
    for name, units in needed.items():
        where = find_type(name, cluster.types[name], hardware, catalog)
        there = left[where.device] if isinstance(where, Hand) else 0
        if units > there:
            lacking[name] = units - there
        elif isinstance(where, Hand):
            left[where.device] -= units
    return lacking
