"""A measurement written by hand."""

from __future__ import annotations

from typing import Any

from heterps.plan import Cluster, ResourceType
from heterps.profile.hardware import CoreRates, Gpu, Hardware
from heterps.profile.links import Links, Served
from heterps.profile.measurement import LayerTimes, Measurement

CORES = 4
H200 = Gpu(name="NVIDIA H200", model="h200", count=2, memory_gb=150.1)
SERVED = Served(sync_s=0.004, ps_s=0.003)


def hardware(*gpus: Gpu) -> Hardware:
    core = CoreRates(flops_per_s=1e11, bytes_per_s=1e10, random_bytes_per_s=1e9)
    return Hardware(cpu="Some CPU", cores=CORES, memory_gb=16.0, gpus=gpus, core=core)


def layer(name: str, seconds: float, alpha: float, **fields: Any) -> LayerTimes:
    """A layer whose times on 1, 2 and 4 cores are exactly those of the cost model."""
    given: dict[str, Any] = {
        "kind": "fc", "input_bytes": 1000, "output_bytes": 2000, "state_bytes": 3000, "sharded": False, "flops": 1e8,
        "moved_bytes": 1e6, "random_bytes": 0.0, "parameter_bytes": 0.0, "exchanged_bytes": 0.0, "cpu_spread": 0.02,
        "cpu_s": {str(k): seconds * (1 - alpha + alpha / k) for k in (1, 2, CORES)}, "overhead_s": 1e-5, **fields,
    }  # fmt: skip
    return LayerTimes(name=name, **given)


def measurement(*gpus: Gpu, **fields: Any) -> Measurement:
    """An embedding, a fully connected layer and a loss, read in 5 ms, on four cores and these GPUs."""

    def on_gpu(seconds: float) -> float | None:
        return seconds if gpus else None

    rows = {"kind": "embedding", "sharded": True, "random_bytes": 3e6, "exchanged_bytes": 2.5e6, "flops": 0.0,
            "moved_bytes": 0.0, "served": SERVED}  # fmt: skip
    layers = (
        layer("embedding", 0.02, 0.9, gpu_s=on_gpu(0.001), **rows),
        layer("fc", 0.04, 0.8, parameter_bytes=1e6, gpu_s=on_gpu(0.0005)),
        layer("loss", 0.001, 0.0, gpu_s=on_gpu(0.0001), flops=0.0),
    )
    links = Links(process_gbps=16.0, round_trip_s=5e-5, all_reduce_bytes_per_s=1e9)
    given: dict[str, Any] = {
        "key": "0123", "model": "small", "batch_size": 1024, "micro_batches": 2, "precision": "float32",
        "hardware": hardware(*gpus), "links": links, "data_s": 0.005, "layers": layers, **fields,
    }  # fmt: skip
    return Measurement(**given)


def cluster(*, parameter_server: str | None = None, **types: dict[str, Any]) -> Cluster:
    """Types by name: `cluster(cpu={"limit": 4})`. A dash in a name is written as two underscores."""
    made = {
        name.replace("__", "-"): ResourceType(**{"device": "cpu", "price_per_hour": 0.04, **fields})
        for name, fields in types.items()
    }
    return Cluster(types=made, parameter_server=parameter_server)
