"""A planning problem as arrays: profile, cluster and goal, ready for scoring placements in bulk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from heterps import _native
from heterps.errors import InvalidInput, did_you_mean
from heterps.plan import Cluster, Profile
from heterps.schedule.goal import Goal
from heterps.units import BITS_PER_BYTE, GIGA

Floats = NDArray[np.float64]
Placements = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Problem:
    """Profile, cluster and goal, and the arrays made of them.

    Rows are layers, columns the cluster's types in their order (`names`); times are seconds per sample and infinite
    in `parallel` where a type cannot run a layer. Placements are int32 arrays of column numbers, one a layer.
    """

    profile: Profile
    cluster: Cluster
    goal: Goal
    profile_source: str = "profile"
    cluster_source: str = "cluster"
    names: tuple[str, ...] = field(init=False)
    runnable: NDArray[np.bool_] = field(init=False)
    serial: Floats = field(init=False)
    parallel: Floats = field(init=False)
    sync_serial: Floats = field(init=False)
    sync_parallel: Floats = field(init=False)
    server: Floats = field(init=False)
    cut: Floats = field(init=False)
    replicated: Floats = field(init=False)
    sharded: Floats = field(init=False)
    price: Floats = field(init=False)
    limit: Floats = field(init=False)
    memory: Floats = field(init=False)
    server_type: int = field(init=False)
    tables: _native.Tables = field(init=False)

    def __post_init__(self) -> None:
        self._check_types()
        for name, value in _arrays(self.profile, self.cluster).items():
            object.__setattr__(self, name, value)
        names = tuple(self.cluster.types)
        object.__setattr__(self, "names", names)
        server = self.cluster.parameter_server
        object.__setattr__(self, "server_type", -1 if server is None else names.index(server))
        object.__setattr__(self, "tables", self.make_tables())

    def __reduce__(self) -> tuple[type[Problem], tuple[object, ...]]:
        return Problem, (self.profile, self.cluster, self.goal, self.profile_source, self.cluster_source)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.profile.layers)

    @property
    def types(self) -> int:
        """Number of types."""
        return len(self.names)

    @property
    def max_rate(self) -> float:
        """Dollars an hour the plan may cost; infinite if the goal sets none."""
        return math.inf if self.goal.max_usd_per_hour is None else self.goal.max_usd_per_hour

    def make_tables(self) -> _native.Tables:
        """The native core's copy of the arrays."""
        return _native.Tables(
            layers=self.layers, types=len(self.cluster.types), serial=self.serial, parallel=self.parallel,
            sync_serial=self.sync_serial, sync_parallel=self.sync_parallel, server=self.server, cut=self.cut,
            replicated=self.replicated, sharded=self.sharded, memory=self.memory, price=self.price, limit=self.limit,
            server_type=self.server_type, max_rate=self.max_rate,
        )  # fmt: skip

    def with_goal(self, goal: Goal) -> Problem:
        """The same problem with another goal."""
        return Problem(self.profile, self.cluster, goal, self.profile_source, self.cluster_source)

    def encode(self, placement: Sequence[str]) -> Placements:
        """A placement of type names as an array of shape [1, layers]."""
        return np.array([[self.names.index(name) for name in placement]], dtype=np.int32)

    def decode(self, placement: NDArray[np.int32]) -> tuple[str, ...]:
        """One row of type numbers as names."""
        return tuple(self.names[t] for t in placement)

    def type_index(self, name: str) -> int:
        """The column of a type; `InvalidInput` if the cluster has none of that name."""
        if name not in self.names:
            hint = did_you_mean(name, self.names)
            raise InvalidInput(f"unknown type {name!r}; {self.cluster_source} has {', '.join(self.names)}.{hint}")
        return self.names.index(name)

    def unused_types(self) -> list[str]:
        """A note for each type that only the profile or only the cluster has, with the other's most similar name.

        That is allowed, as one profile serves many clusters, but it is also what a slip in a name looks like.
        """
        profiled, offered = {name for layer in self.profile.layers for name in layer.costs}, set(self.names)
        only_profiled, only_offered = sorted(profiled - offered), sorted(offered - profiled)
        return [
            f"{name}: in {there} but not in {missing}; no layer can be placed there.{did_you_mean(name, others)}"
            for names, others, there, missing in (
                (only_profiled, only_offered, self.profile_source, self.cluster_source),
                (only_offered, only_profiled, self.cluster_source, self.profile_source),
            )
            for name in names
        ]

    def _check_types(self) -> None:
        """Every layer must run somewhere, and a type name that stands in for a missing one is taken for a slip."""
        offered = set(self.cluster.types)
        layers = self.profile.layers
        for i, layer in enumerate(layers):
            if not offered & layer.costs.keys():
                raise InvalidInput(
                    f"{self.profile_source}: layers[{i}].costs: no type of {self.cluster_source} "
                    f"({', '.join(self.cluster.types)}) can run layer {layer.name!r}, which has costs for "
                    f"{', '.join(layer.costs)}; profile it on one of the types, or add the type to the cluster"
                )
        for name in {n for layer in layers for n in layer.costs} - offered:
            has = [name in layer.costs for layer in layers]
            for known in self.cluster.types:
                if not all(has) and [known not in layer.costs for layer in layers] == has:
                    raise InvalidInput(
                        f"{self.profile_source}: layers[{has.index(True)}].costs.{name}: unknown type {name!r}: "
                        f"{self.cluster_source} has {', '.join(self.cluster.types)}. Did you mean {known!r}, "
                        "which these layers lack?"
                    )


def _arrays(profile: Profile, cluster: Cluster) -> dict[str, Floats | NDArray[np.bool_]]:
    layers, batch, names = profile.layers, profile.batch_size, tuple(cluster.types)
    columns = {key: np.zeros((len(layers), len(names))) for key in
               ("serial", "parallel", "sync_serial", "sync_parallel", "server", "cut")}  # fmt: skip
    runnable = np.array([[name in layer.costs for name in names] for layer in layers])
    for i, layer in enumerate(layers):
        for t, name in enumerate(names):
            gbps = cluster.types[name].bandwidth_gbps
            if gbps is not None and i < len(layers) - 1:
                columns["cut"][i, t] = 2.0 * layer.output_bytes * BITS_PER_BYTE / (gbps * GIGA) / batch
            if name not in layer.costs:
                columns["parallel"][i, t] = math.inf
                continue
            cost = layer.costs[name]
            columns["serial"][i, t] = (1 - cost.alpha) * cost.compute_s / batch
            columns["parallel"][i, t] = cost.alpha * cost.compute_s / batch
            columns["sync_serial"][i, t] = (1 - cost.beta) * cost.sync_s / batch
            columns["sync_parallel"][i, t] = cost.beta * cost.sync_s / batch
            if cluster.parameter_server is not None:
                columns["server"][i, t] = cost.ps_s / batch
    kinds = cluster.types.values()
    state = np.array([float(layer.state_bytes) for layer in layers])
    is_sharded = np.array([layer.sharded for layer in layers])
    return {
        **columns,
        "runnable": runnable,
        "replicated": np.where(is_sharded, 0.0, state),
        "sharded": np.where(is_sharded, state, 0.0),
        "price": np.array([kind.price_per_hour for kind in kinds]),
        "limit": np.array([math.inf if kind.limit is None else float(kind.limit) for kind in kinds]),
        "memory": np.array([math.inf if kind.memory_gb is None else kind.memory_gb * GIGA for kind in kinds]),
    }
