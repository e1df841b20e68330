"""What the catalog says of one resource type, and what a user writes to add one."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field

from heterps.documents import Part
from heterps.plan import Price, ResourceType

NAME_PATTERN = r"[a-z0-9]+([._-][a-z0-9]+)*"
"""A name: lower-case letters and digits, joined by dots, dashes or underscores. A colon would begin a limit."""

Rate = Annotated[float, Field(gt=0)]
Date = Annotated[
    str,
    BeforeValidator(lambda value: value.isoformat() if isinstance(value, datetime.date) else value),  # YAML makes dates
    Field(pattern=r"^\d{4}-\d{2}-\d{2}$", description="the day the figures were taken, as 2026-08-22"),
]


class Written(Part):
    """An entry as users write it, under its name. Rates left out come from `accelerator`, where that is a known GPU."""

    model_config = ConfigDict(extra="forbid")

    device: Literal["cpu", "cuda"] | None = Field(default=None, description="cpu or cuda")
    provider: str = Field(default="own", description="who rents it out, such as aws")
    instance: str = Field(default="own", description="the provider's name of the machine")
    accelerator: str | None = Field(default=None, description="the GPU's model, such as H200")
    units: int = Field(default=1, ge=1, description="units in one instance: its GPUs, or its vCPUs if it has none")
    price_per_hour: Price = Field(description="US dollars an hour for one unit: the instance's price / units, above 0")
    spot_price_per_hour: Price | None = Field(default=None, description="the same on the spot market, above 0")
    region: str | None = Field(default=None, description="where the prices hold, such as us-east-1")
    memory_gb: Rate | None = Field(default=None, description="1e9 bytes for one unit, above 0")
    bandwidth_gbps: Rate | None = Field(default=None, description="gigabits a second of network for one unit, above 0")
    peak_fp32_flops_per_s: Rate | None = Field(default=None, description="peak float32 FLOP/s of one unit, above 0")
    peak_bf16_flops_per_s: Rate | None = Field(
        default=None,
        description="peak dense bfloat16 FLOP/s of one unit, above 0; leave it out if it has no such units",
    )
    peak_fp16_flops_per_s: Rate | None = Field(default=None, description="the same for float16")
    memory_bytes_per_s: Rate | None = Field(
        default=None, description="peak bytes a second of one unit's memory, above 0"
    )
    bus_bytes_per_s: Rate | None = Field(
        default=None, description="bytes a second from host to device, one way, above 0; leave it out for a cpu"
    )
    price_date: Date | None = None
    price_source: str = Field(default="own", description="where the prices come from")
    rates_date: Date | None = None
    rates_source: str = Field(default="own", description="where peaks, memory and bus come from")
    bandwidth_source: str = Field(default="own", description="where the network's figure comes from")


class Entry(Written):
    """A resource type of the catalog; all figures are of ONE unit.

    A unit is one GPU, with its share of the host, or one vCPU: a hardware thread, so half a core, except where a
    processor runs one thread a core. An instance has `units` of them and is rented whole; prices are its price divided
    by that. Without `memory_gb` memory is no constraint, without `bandwidth_gbps` the link is free, as in a cluster.
    """

    name: str = Field(pattern=f"^{NAME_PATTERN}$", description="a lower-case word, as a cluster names its types")
    device: Literal["cpu", "cuda"] = Field(description="cpu or cuda")
    peak_fp32_flops_per_s: Rate
    memory_bytes_per_s: Rate

    def price(self, *, spot: bool = False) -> float | None:
        """US dollars an hour for one unit; None if no spot price is listed."""
        return self.spot_price_per_hour if spot else self.price_per_hour

    def resource_type(self, *, spot: bool = False, limit: int | None = None) -> ResourceType:
        """What a cluster says of it. `spot` needs a spot price that is listed."""
        price = self.price(spot=spot)
        assert price is not None, f"{self.name} has no spot price"
        return ResourceType(
            device=self.device,
            price_per_hour=price,
            limit=limit,
            bandwidth_gbps=self.bandwidth_gbps,
            memory_gb=self.memory_gb,
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the name first, without what is not known."""
        data = self.model_dump(mode="json", exclude_none=True)
        return {"name": data.pop("name"), **data}
