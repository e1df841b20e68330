"""From a measurement and a cluster to the profile that planning needs.

A type of the cluster is measured if this machine has it, and derived by a roofline otherwise (`derive`). Three things
depend on whether a type's units are those of this machine (its limit says so) or of several:

- Exchange. Cores of one machine share memory, and one process holds the tables: `sync_s` is 0. Units of several
  machines sum dense gradients (as measured between two processes, or by the type's own link, where that is slower) and
  get rows from a parameter server, if the cluster has one (measured at a real one).
- Scaling. Cores of one machine share a batch as threads, as was measured. Units of several machines compute parts of
  it by themselves, and what a part costs however small it is (measured at two batch sizes) does not shrink.
- Reading. It overlaps computing, so it is communication of the first layer. One process reads for all units of one
  machine (`beta` 0); on several each reads its share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from heterps.catalog import Catalog, Entry
from heterps.errors import InvalidInput
from heterps.plan import Cluster, Cost, Layer, Profile, ResourceType
from heterps.profile.derive import Counted, Rates, derive, rates_of
from heterps.profile.fit import Scaling
from heterps.profile.hardware import Hardware
from heterps.profile.measurement import LayerTimes, Measurement
from heterps.schedule.roofline import UNEVEN_SHARE
from heterps.units import BITS_PER_BYTE, GIGA

HERE_CPU = "cpu"
"""What the cores of this machine are called."""


@dataclass(frozen=True, slots=True)
class Hand:
    """A type that this machine has: `device` is cpu or cuda, `units` how many."""

    device: str
    units: int


def find_type(name: str, kind: ResourceType, hardware: Hardware, catalog: Catalog) -> Hand | Entry:
    """Whether a type is at hand, or else what the catalog says of it.

    A core is at hand under any name that the catalog does not use for something else; a GPU if its model is the one
    here, or the catalog does not know the name.

    Raises:
        InvalidInput: for a GPU that is neither here nor in the catalog.
    """
    try:
        entry = catalog.get(name)
    except InvalidInput:
        entry = None
    if kind.device == "cpu":
        if entry is None or entry.device != "cpu" or name == HERE_CPU:
            return Hand("cpu", hardware.cores)
        return entry
    gpus = hardware.gpus
    if gpus and (entry is None or name == gpus[0].model or (entry.accelerator or "").lower() == gpus[0].model):
        return Hand("cuda", gpus[0].count)
    if entry is None or entry.device != "cuda":
        raise InvalidInput(
            f"type {name!r}: this machine has no such GPU, and the catalog does not know it; name it as `heterps "
            "catalog` does, or add it to your own catalog with its peak rates"
        )
    return entry


def assemble(measured: Measurement, cluster: Cluster, *, catalog: Catalog) -> Profile:
    """The profile of the measured chain on the types of a cluster."""
    found = {name: find_type(name, kind, measured.hardware, catalog) for name, kind in cluster.types.items()}
    layers = []
    for number, layer in enumerate(measured.layers):
        reading_s = measured.data_s if number == 0 else 0.0
        costs = {
            name: _cost(measured, layer, cluster, name, where, reading_s, catalog) for name, where in found.items()
        }
        layers.append(Layer(name=layer.name, kind=layer.kind, output_bytes=layer.output_bytes,
                            input_bytes=layer.input_bytes, state_bytes=layer.state_bytes, sharded=layer.sharded,
                            costs={name: cost for name, cost in costs.items() if cost is not None}))  # fmt: skip
    return Profile(format="heterps.profile/1", model=measured.model, batch_size=measured.batch_size,
                   layers=tuple(layers), micro_batches=measured.micro_batches, precision=measured.precision,
                   measured_on=measured.hardware.identity, measurement=measured.key,
                   links=measured.links.model_dump(mode="json"))  # fmt: skip


def _cost(
    measured: Measurement, layer: LayerTimes, cluster: Cluster, name: str, where: Hand | Entry, reading_s: float,
    catalog: Catalog,
) -> Cost | None:  # fmt: skip
    kind = cluster.types[name]
    if isinstance(where, Entry):
        return _with_reading(_derived(measured, layer, where, catalog), reading_s)
    local = kind.limit is not None and kind.limit <= where.units and cluster.parameter_server is None
    sync_s, beta = (reading_s, 0.0) if local else _exchange(measured, layer, cluster, name, reading_s, catalog)
    ps_s = layer.served.ps_s if layer.served is not None else 0.0
    if where.device == "cpu":
        scaling = layer.scaling() if local else _over_machines(measured, layer)
        return Cost(compute_s=scaling.seconds, alpha=scaling.alpha, sync_s=sync_s, beta=beta, ps_s=ps_s,
                    source="measured", spread=layer.cpu_spread, overhead_s=layer.overhead_s)  # fmt: skip
    if layer.gpu_s is None:
        return None
    return Cost(compute_s=layer.gpu_s, sync_s=sync_s, beta=beta, ps_s=ps_s, source="measured")


def _exchange(
    measured: Measurement, layer: LayerTimes, cluster: Cluster, name: str, reading_s: float, catalog: Catalog
) -> tuple[float, float]:
    """Seconds of exchanging a layer's parameters for a batch between units of several machines, and its `beta`.

    Rows go to and from the server as was measured, or over the unit's link, if that is slower. Dense gradients are
    summed as was measured between two processes, or over the link; the units of a machine share that work, but every
    machine repeats it. Each unit reads its share.
    """
    kind = cluster.types[name]
    byte_s = 0.0 if kind.bandwidth_gbps is None else BITS_PER_BYTE / (kind.bandwidth_gbps * GIGA)
    try:
        together = catalog.get(name).units
    except InvalidInput:
        together = measured.hardware.cores
    link_s = 2 * layer.parameter_bytes * byte_s
    serial_s = max(layer.parameter_bytes / measured.links.all_reduce_bytes_per_s, link_s / together)
    parallel_s = max(0.0, link_s - serial_s) + reading_s
    if layer.served is not None and cluster.parameter_server is not None:
        serial_s += layer.served.sync_s * (1 - layer.served.beta)  # a slow link is each unit's own: it adds none
        parallel_s += max(layer.served.sync_s * layer.served.beta, layer.exchanged_bytes * byte_s)
    whole_s = serial_s + parallel_s
    return whole_s, parallel_s / whole_s if whole_s > 0 else 1.0


def _derived(measured: Measurement, layer: LayerTimes, entry: Entry, catalog: Catalog) -> Cost:
    counted = Counted(
        name=layer.name, flops=layer.flops, bytes=layer.moved_bytes, random_bytes=layer.random_bytes,
        state_bytes=layer.state_bytes, parameters_bytes=layer.parameter_bytes, exchanged_bytes=layer.exchanged_bytes,
    )  # fmt: skip
    at_hand = _at_hand(measured, layer, catalog)
    same = [name for name in at_hand if (name == "gpu") == (entry.device == "cuda")]
    return derive(counted, measured=at_hand, target=rates_of(entry, precision=measured.precision), same_device=same)


def _with_reading(cost: Cost, reading_s: float) -> Cost:
    """Each unit reads its share, besides its exchange."""
    if not reading_s:
        return cost
    sync_s = cost.sync_s + reading_s
    return cost.model_copy(update={"sync_s": sync_s, "beta": 1 - cost.sync_s * (1 - cost.beta) / sync_s})


def _at_hand(measured: Measurement, layer: LayerTimes, catalog: Catalog) -> Mapping[str, tuple[Rates, Cost]]:
    """What the layer costs on the hardware here, with its rates: what its efficiency follows from."""
    scaling, served = _over_machines(measured, layer), layer.served
    cpu = Cost(compute_s=scaling.seconds, alpha=scaling.alpha, sync_s=served.sync_s if served else 0.0,
               beta=served.beta if served else 1.0, ps_s=served.ps_s if served else 0.0)  # fmt: skip
    core = replace(measured.hardware.core_rates(), link_gbps=measured.links.process_gbps)  # what `served` went over
    found = {"cpu": (core, cpu)}
    gpu = measured.hardware.gpu_rates(catalog, precision=measured.precision)
    if gpu is not None and layer.gpu_s is not None:
        found["gpu"] = (gpu, Cost(compute_s=layer.gpu_s, sync_s=0.0))
    return found


def _over_machines(measured: Measurement, layer: LayerTimes) -> Scaling:
    """Each unit computes its part of the batch by itself: what every micro-batch costs, however small, stays."""
    seconds = layer.cpu_s["1"]
    serial_s = min(measured.micro_batches * layer.overhead_s, seconds) + UNEVEN_SHARE * seconds
    return Scaling(seconds, max(0.0, 1 - serial_s / seconds) if seconds > 0 else 1.0)
