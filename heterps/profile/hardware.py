"""The hardware of this machine: its cores and GPUs, and rates that no datasheet tells."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field

from heterps.catalog import Catalog
from heterps.catalog.parts import find_gpu
from heterps.documents import Part
from heterps.profile.derive import Rates, rates_of
from heterps.profile.sweep import threads
from heterps.runtime.placement import cores
from heterps.units import GIGA

OVERHEAD_S = 5e-6
"""Seconds of one call of a layer on a core. Assumed: a few operators of PyTorch."""


class Gpu(Part):
    """One kind of GPU of this machine."""

    name: str
    """As the driver calls it."""
    model: str
    """As the catalog calls it, in lower case: `h200`; a name of the catalog's kind if it does not know the GPU."""
    count: int
    memory_gb: float


class CoreRates(Part):
    """What one core reaches, measured: multiply-adds of large matrices, copies of memory, rows at random places."""

    flops_per_s: Annotated[float, Field(gt=0)]
    bytes_per_s: Annotated[float, Field(gt=0)]
    random_bytes_per_s: Annotated[float, Field(gt=0)]


class Hardware(Part):
    """This machine."""

    cpu: str
    cores: int
    memory_gb: float
    gpus: tuple[Gpu, ...] = Field(default=(), strict=False)
    core: CoreRates | None = None

    @property
    def identity(self) -> str:
        """What measurements are kept under: the same for the same hardware."""
        gpus = ", ".join(f"{gpu.count} × {gpu.name}" for gpu in self.gpus)
        return f"{self.cores} × {self.cpu}" + (f", {gpus}" if gpus else "")

    def core_rates(self) -> Rates:
        """Rates of one core, as deriving needs them."""
        assert self.core is not None
        return Rates(
            flops_per_s=self.core.flops_per_s, bytes_per_s=self.core.bytes_per_s,
            random_bytes_per_s=self.core.random_bytes_per_s, link_gbps=float("inf"), bus_bytes_per_s=None,
            overhead_s=OVERHEAD_S, units_per_host=self.cores,
        )  # fmt: skip

    def gpu_rates(self, catalog: Catalog, *, precision: str) -> Rates | None:
        """Published rates of the first GPU; None without one, or if the catalog does not know it."""
        entries = catalog.find(accelerator=self.gpus[0].model) if self.gpus else []
        return rates_of(entries[0], precision=precision) if entries else None


def here() -> Hardware:
    """Looks at this machine. Nothing is timed."""
    kinds: dict[str, list[float]] = {}
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        found = torch.cuda.get_device_properties(number)
        kinds.setdefault(found.name, []).append(found.total_memory / GIGA)
    gpus = tuple(
        Gpu(name=name, model=gpu_model(name, memory[0]), count=len(memory), memory_gb=round(memory[0], 1))
        for name, memory in kinds.items()
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIGA
    return Hardware(cpu=cpu_name(), cores=cores(), memory_gb=round(memory, 1), gpus=gpus)


def gpu_model(name: str, memory_gb: float) -> str:
    """The catalog's name of a GPU, from the driver's: `NVIDIA A100-SXM4-40GB` is `a100-40gb`."""
    words = name.lower().replace("nvidia", "").replace("tesla", "").replace("-", " ").split()
    sizes = [word for word in words if word.endswith("gb")] or [f"{round(memory_gb / 40) * 40}gb"]
    for word in words:
        for candidate in (f"{word}-{sizes[0]}", word):
            part = find_gpu(candidate)
            if part is not None:
                return part.model.lower()
    return "-".join(words) or "gpu"


def cpu_name() -> str:
    """The processor's model."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def measure_core(*, seconds: float = 0.5) -> CoreRates:
    """Times one core for about so many seconds each: the best of repeated runs, as rates are peaks."""
    with threads(1), torch.no_grad():
        size = 768
        left, right, out = (torch.randn(size, size) for _ in range(3))
        flops = 2 * size**3 / _best(lambda: torch.mm(left, right, out=out), seconds)
        source, target = torch.zeros(16 << 20), torch.zeros(16 << 20)  # 64 MB each: more than caches hold
        copied = 2 * source.nbytes / _best(lambda: target.copy_(source), seconds)
        table, ids = torch.zeros(2 << 20, 16), torch.randint(0, 2 << 20, (1 << 17,))
        rows = torch.empty(len(ids), 16)
        random = rows.nbytes / _best(lambda: torch.index_select(table, 0, ids, out=rows), seconds)
    return CoreRates(flops_per_s=flops, bytes_per_s=copied, random_bytes_per_s=random)


def _best(work: Callable[[], object], seconds: float) -> float:
    work()
    best, until = float("inf"), time.perf_counter() + seconds
    while best == float("inf") or time.perf_counter() < until:  # once at least, however late it is
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best
