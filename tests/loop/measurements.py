"""A measurement made up, of a chain of an embedding and dense layers, for what needs no real one."""

from __future__ import annotations

from heterps.profile.hardware import CoreRates, Gpu, Hardware
from heterps.profile.links import Links, Served
from heterps.profile.measurement import LayerTimes, Measurement


def made_up(
    seconds: tuple[float, ...] = (0.004, 0.030, 0.020, 0.001),
    *,
    cores: int = 4,
    gpu_s: tuple[float, ...] | None = None,
    data_s: float = 0.0005,
) -> Measurement:
    """Layers of so many seconds on one core; two cores take 0.55 of it."""
    gpus = (Gpu(name="NVIDIA H200", model="h200", count=1, memory_gb=141.0),) if gpu_s is not None else ()
    layers = []
    for number, own in enumerate(seconds):
        rows = number == 0
        layers.append(LayerTimes(
            name=f"layer{number}", kind="embedding" if rows else "fc", input_bytes=1000, output_bytes=40_000,
            state_bytes=10_000_000 if rows else 100_000, sharded=rows, flops=0.0 if rows else 1e9, moved_bytes=1e6,
            random_bytes=2e7 if rows else 0.0, parameter_bytes=0.0 if rows else 30_000.0,
            exchanged_bytes=1.5e7 if rows else 0.0, cpu_s={"1": own, "2": own * 0.55}, cpu_spread=0.02, overhead_s=1e-5,
            gpu_s=gpu_s[number] if gpu_s is not None else None,
            served=Served(sync_s=0.010, ps_s=0.006) if rows else None,
        ))  # fmt: skip
    core = CoreRates(flops_per_s=1e11, bytes_per_s=2e10, random_bytes_per_s=2e9)
    return Measurement(
        key="made-up", model="made-up", batch_size=1024, micro_batches=1, precision="float32", data_s=data_s,
        hardware=Hardware(cpu="a core", cores=cores, memory_gb=16.0, gpus=gpus, core=core),
        links=Links(process_gbps=20.0, round_trip_s=1e-4, all_reduce_bytes_per_s=1e9, host_to_device_gbps=400.0),
        layers=tuple(layers),
    )  # fmt: skip
