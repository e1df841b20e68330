"""Processors and GPUs with their published peak rates (`rates.csv`), and the offers that ship (`offers.csv`)."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

from heterps.catalog.entry import Entry
from heterps.units import GIGA

TERA = 1e12
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """Peak rates of one unit: a GPU, or a vCPU. `memory_gb` is a GPU's own; a vCPU has a share of its instance's."""

    model: str
    device: Literal["cpu", "cuda"]
    aliases: tuple[str, ...]
    peak_fp32_flops_per_s: float
    peak_bf16_flops_per_s: float | None
    peak_fp16_flops_per_s: float | None
    memory_bytes_per_s: float
    memory_gb: float | None
    bus_bytes_per_s: float | None
    date: str
    source: str

    @property
    def accelerator(self) -> str | None:
        """The GPU's model; None for a CPU."""
        return self.model if self.device == "cuda" else None

    def fields(self) -> dict[str, Any]:
        """The fields of an entry that it settles."""
        settled = {
            "device": self.device,
            "accelerator": self.accelerator,
            "peak_fp32_flops_per_s": self.peak_fp32_flops_per_s,
            "peak_bf16_flops_per_s": self.peak_bf16_flops_per_s,
            "peak_fp16_flops_per_s": self.peak_fp16_flops_per_s,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "memory_gb": self.memory_gb,
            "bus_bytes_per_s": self.bus_bytes_per_s,
            "rates_date": self.date,
            "rates_source": self.source,
        }
        return {key: value for key, value in settled.items() if value is not None}


@cache
def processors() -> Mapping[str, Processor]:
    """Model -> processor."""
    return MappingProxyType({row["part"]: _processor(row) for row in _rows("rates.csv")})


def find_gpu(name: str) -> Processor | None:
    """The GPU of a model's name or alias, in any case: `A100` and `a100-40gb` are one."""
    return _gpus().get(name.lower())


@cache
def published() -> tuple[Entry, ...]:
    """The entries that ship with the package."""
    return tuple(_entry(row) for row in _rows("offers.csv"))


@cache
def _gpus() -> Mapping[str, Processor]:
    return {alias: part for part in processors().values() for alias in part.aliases}


def _processor(row: Mapping[str, str]) -> Processor:
    return Processor(
        model=row["part"],
        device="cuda" if row["device"] == "cuda" else "cpu",
        aliases=tuple(row["aliases"].split()),
        peak_fp32_flops_per_s=float(row["fp32_tflops"]) * TERA,
        peak_bf16_flops_per_s=_scaled(row["bf16_tflops"], TERA),
        peak_fp16_flops_per_s=_scaled(row["fp16_tflops"], TERA),
        memory_bytes_per_s=float(row["memory_gbytes_per_s"]) * GIGA,
        memory_gb=_scaled(row["memory_gb"], 1.0),
        bus_bytes_per_s=_scaled(row["bus_gbytes_per_s"], GIGA),
        date=row["date"],
        source=row["source"],
    )


def _entry(row: Mapping[str, str]) -> Entry:
    """One unit of an offer: whatever is listed for the instance, its host included, divided by the units."""
    units = int(row["units"])
    spot = (float(row["spot_price"]) + float(row["spot_host_price"] or 0)) / units if row["spot_price"] else None
    fields = {
        "memory_gb": float(row["memory_gib"]) * GIB / GIGA / units,  # replaced by a GPU's own
        **processors()[row["part"]].fields(),
        "name": row["name"],
        "provider": row["provider"],
        "instance": row["instance"],
        "units": units,
        "price_per_hour": (float(row["price"]) + float(row["host_price"] or 0)) / units,
        "spot_price_per_hour": spot,
        "region": row["region"],
        "bandwidth_gbps": float(row["network_gbps"]) / units,
        "bandwidth_source": row["network_source"],
        "price_date": row["date"],
        "price_source": row["source"],
    }
    return Entry(**fields)


def _scaled(cell: str, scale: float) -> float | None:
    return float(cell) * scale if cell else None


def _rows(file: str) -> Iterable[dict[str, str]]:
    text = (resources.files(__package__) / file).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())
