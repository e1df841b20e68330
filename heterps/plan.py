"""The values planning and running exchange: `Profile`, `Cluster` and `Plan`, frozen and validated.

A profile says what each layer costs on each resource type, a cluster what types are on offer at what price, and a plan
which layer runs where on how many units, with what that is predicted to give. All three load and save the formats that
other programs read and write too. The module is also the function `heterps.plan(profile, cluster, ...)`.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, PlainSerializer, model_validator

from heterps._callable import make_callable
from heterps.documents import Document, FrozenMap, Part, to_yaml
from heterps.errors import did_you_mean

Seconds = Annotated[float, Field(ge=0)]
Bytes = Annotated[
    float,
    Field(ge=0),
    PlainSerializer(lambda size: int(size) if size % 1 == 0 and size < 2**53 else size),  # as people write them
]
Fraction = Annotated[float, Field(ge=0, le=1)]
Price = Annotated[float, Field(gt=0, description="US dollars an hour for one unit, above 0")]


class Cost(Part):
    """One layer on one unit of one type, for one batch."""

    compute_s: Seconds = Field(description="seconds of forward, backward and update for one batch, 0 or more")
    sync_s: Seconds = Field(description="seconds of exchanging parameters for one batch, 0 or more")
    alpha: Fraction = Field(default=1.0, description="parallel fraction of compute_s, from 0 to 1")
    beta: Fraction = Field(default=1.0, description="parallel fraction of sync_s, from 0 to 1")
    ps_s: Seconds = Field(default=0.0, description="unit-seconds of parameter-server work a batch, 0 or more")
    source: str | None = Field(default=None, description="where the figures come from: measured or derived")


class Layer(Part):
    """One layer of a profile. A type missing from `costs` cannot run it."""

    name: str = Field(min_length=1, description="the layer's name")
    kind: str = Field(default="dense", description="what the layer is, such as embedding or fc")
    output_bytes: Bytes = Field(default=0.0, description="bytes that go to the next layer for one batch, 0 or more")
    input_bytes: Bytes = Field(default=0.0, description="bytes that the layer reads for one batch, 0 or more")
    state_bytes: Bytes = Field(default=0.0, description="bytes of weights and optimizer state, 0 or more")
    sharded: bool = Field(default=False, description="true if units share the state instead of replicating it")
    costs: FrozenMap[Cost] = Field(min_length=1, description="resource type -> cost; at least one type")


class Profile(Document):
    """What each layer of a chain costs on each resource type (`heterps.profile/1`)."""

    format: Literal["heterps.profile/1"] = Field(
        description="must be heterps.profile/1; convert the file or fix the key"
    )
    model: str = Field(default="unnamed", description="the model's name")
    batch_size: int = Field(gt=0, le=2**53, description="samples a batch, a whole number of 1 or more")
    layers: tuple[Layer, ...] = Field(
        min_length=1, strict=False, description="the chain's layers in order, at least one"
    )

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        # Otherwise a plan could take no time at all, and its throughput would be infinite.
        if not any(all(c.compute_s + c.sync_s > 0 for c in layer.costs.values()) for layer in self.layers):
            raise ValueError("every layer is free on some type; one must take time wherever it runs")
        return self


class ResourceType(Part):
    """A kind of hardware with a price."""

    model_config = ConfigDict(extra="forbid")

    device: Literal["cpu", "cuda"] = Field(description="cpu or cuda")
    price_per_hour: Price
    limit: int | None = Field(
        default=None,
        gt=0,
        le=2**53,
        description="units there are, a whole number of 1 or more; leave it out for no limit, "
        "remove the type if there are none",
    )
    bandwidth_gbps: float | None = Field(
        default=None, gt=0, description="gigabits a second for one unit, above 0; leave it out for a free link"
    )
    memory_gb: float | None = Field(
        default=None, gt=0, description="1e9 bytes for one unit, above 0; leave it out if memory is no constraint"
    )


class Cluster(Document):
    """The resource types on offer, and which of them serves tables, if any."""

    model_config = ConfigDict(extra="forbid")

    types: FrozenMap[ResourceType] = Field(min_length=1, description="name -> resource type; at least one")
    parameter_server: str | None = Field(default=None, description="the type that serves tables: one of types")

    @model_validator(mode="after")
    def _server_is_known(self) -> Self:
        if self.parameter_server is not None and self.parameter_server not in self.types:
            hint = did_you_mean(self.parameter_server, self.types)
            raise ValueError(
                f"parameter_server names the unknown type {self.parameter_server!r}; "
                f"the types are {', '.join(self.types)}.{hint}"
            )
        return self

    def to_text(self) -> str:
        """The file's text, as YAML."""
        return to_yaml(self.to_dict())


class PlanType(Part):
    """What a plan keeps of a resource type."""

    device: Literal["cpu", "cuda"]
    price_per_hour: Price


class PlanStage(Part):
    """Layers `first`..`last` (both included) on `units` units of `type`."""

    first: int = Field(ge=0)
    last: int = Field(ge=0)
    type: str
    units: int = Field(ge=1)


class ServerUnits(Part):
    """Units that serve tables."""

    type: str
    units: int = Field(ge=0)


class Predicted(Part):
    """What a plan is predicted to give."""

    throughput: float = Field(gt=0, description="samples a second")
    usd_per_hour: float = Field(gt=0)
    usd_per_million_samples: float = Field(gt=0)


class Search(Part):
    """How the plan was found. `optimal` only with a proved gap of at most 1e-6."""

    seconds: float = Field(ge=0)
    evaluations: int = Field(ge=0)
    lower_bound_usd_per_million_samples: float | None = Field(default=None, ge=0)
    optimal: bool


class Inputs(Part):
    """What the plan was made from. Goals that were not stated are absent."""

    profile_sha256: str
    cluster_sha256: str
    min_throughput: float = Field(ge=0)
    max_usd_per_hour: float | None = None
    samples: float | None = None
    deadline_hours: float | None = None
    budget_usd: float | None = None
    mode: Literal["sync"] | None = None
    micro_batches: int | None = None


class Plan(Document):
    """Placement and provisioning, with what they are predicted to give (`heterps.plan/1`)."""

    format: Literal["heterps.plan/1"] = Field(description="must be heterps.plan/1; make the plan again")
    model: str
    method: str
    placement: tuple[str, ...] = Field(min_length=1, strict=False, description="the type of each layer")
    types: FrozenMap[PlanType]
    stages: tuple[PlanStage, ...] = Field(min_length=1, strict=False)
    parameter_server: ServerUnits | None = None
    predicted: Predicted
    search: Search
    inputs: Inputs

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        begins = [0, *(stage.last + 1 for stage in self.stages)]
        if [stage.first for stage in self.stages] != begins[:-1] or begins[-1] != len(self.placement):
            raise ValueError(f"stages must cover layers 0..{len(self.placement) - 1} in order, each once")
        for stage in self.stages:
            if set(self.placement[stage.first : stage.last + 1]) != {stage.type}:
                where = f"stage {stage.first}..{stage.last}"
                raise ValueError(f"{where} is on {stage.type!r}, the placement says otherwise")
        if any(a.type == b.type for a, b in pairwise(self.stages)):
            raise ValueError("neighbouring stages of one type must be one stage")
        used = {*self.placement, *([self.parameter_server.type] if self.parameter_server else [])}
        if missing := used - self.types.keys():
            raise ValueError(f"types lacks {', '.join(sorted(missing))}, which the plan uses")
        return self

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the format's order; `parameter_server` is null where there is none."""
        data = super().to_dict()
        return {key: data.get(key) for key in dict.fromkeys([*type(self).model_fields, *data])}


make_callable(__name__, "heterps.api:plan")
