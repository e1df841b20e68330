"""What was measured of a chain on this machine, before anybody asked about a cluster. Kept in the cache as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from heterps.documents import Document, FrozenMap, Part
from heterps.profile.fit import Scaling, fit_scaling
from heterps.profile.hardware import Hardware
from heterps.profile.links import Links, Served

CPU, GPU = "cpu", "gpu"


class LayerTimes(Part):
    """One layer. All of a batch: bytes, FLOPs and seconds."""

    name: str
    kind: str
    input_bytes: int
    output_bytes: int
    state_bytes: int
    sharded: bool
    flops: float
    moved_bytes: float
    random_bytes: float
    parameter_bytes: float
    exchanged_bytes: float
    cpu_s: FrozenMap[float] = Field(description="cores -> seconds")
    cpu_spread: float = Field(description="half the distance between quartiles, as a share of the median")
    overhead_s: float = Field(description="seconds of a micro-batch on one core, however small it is")
    crossing_s: FrozenMap[float] | None = Field(
        default=None, description="cores -> seconds, if the rows cross to a GPU"
    )
    gpu_s: float | None = Field(default=None, description="seconds on the first GPU")
    served: Served | None = Field(default=None, description="with its table on a parameter server")

    def scaling(self) -> Scaling:
        """On cores. Rows that cross to a GPU count where there is one: nowhere else do rows set the pace."""
        seconds = self.crossing_s if self.crossing_s is not None else self.cpu_s
        return fit_scaling({int(units): value for units, value in seconds.items()})


class Measurement(Document):
    """A chain on this machine (`heterps.measurement/1`)."""

    format: Literal["heterps.measurement/1"] = "heterps.measurement/1"
    key: str = Field(description="what it is kept under in the cache")
    model: str
    batch_size: int
    micro_batches: int
    precision: str
    hardware: Hardware
    links: Links
    data_s: float = Field(description="seconds of reading and decoding a batch, if nothing else runs")
    layers: tuple[LayerTimes, ...] = Field(strict=False)
    others_share: float = Field(default=0.0, description="share of all cores that other programs used meanwhile")
    calibrated: bool = Field(default=False, description="true if a run's times were fed back")

    def scaled(self, factors: Mapping[str, Sequence[float]]) -> Measurement:
        """With the seconds of each layer multiplied: `factors["cpu"]` and `factors["gpu"]` have one for each layer."""
        layers = []
        for number, layer in enumerate(self.layers):
            on_cpu, on_gpu = (factors[kind][number] if kind in factors else 1.0 for kind in (CPU, GPU))
            changed: dict[str, Any] = {"cpu_s": {units: s * on_cpu for units, s in layer.cpu_s.items()}}
            if layer.crossing_s is not None:
                changed["crossing_s"] = {units: s * on_cpu for units, s in layer.crossing_s.items()}
            if layer.gpu_s is not None:
                changed["gpu_s"] = layer.gpu_s * on_gpu
            layers.append(layer.model_copy(update=changed))
        return self.model_copy(update={"layers": tuple(layers), "calibrated": True})
