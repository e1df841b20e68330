import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Placement = NDArray[np.int32]

class Path:
    @property
    def bound(self) -> float: ...
    @property
    def complete(self) -> bool: ...
    @property
    def labels(self) -> int: ...
    @property
    def own(self) -> float: ...
    @property
    def reached(self) -> float: ...
    @property
    def rate(self) -> float: ...
    @property
    def used(self) -> list[float]: ...
    @property
    def placement(self) -> Placement: ...

class Tables:
    def __init__(
        self,
        *,
        layers: int,
        types: int,
        serial: Floats,
        parallel: Floats,
        sync_serial: Floats,
        sync_parallel: Floats,
        server: Floats,
        cut: Floats,
        replicated: Floats,
        sharded: Floats,
        memory: Floats,
        price: Floats,
        limit: Floats,
        server_type: int,
        max_rate: float,
    ) -> None: ...
    def provision(
        self,
        placements: Placement,
        *,
        min_throughput: float,
        max_cost: float,
        fastest: bool,
        micro_batches: float,
        cutoff: float,
    ) -> tuple[Floats, Floats, Floats, Floats, Floats]: ...

class Multipliers:
    def __init__(self, *, type: list[float], rate: float, money: float, server_share: float) -> None: ...

class Graph:
    def __init__(self, tables: Tables) -> None: ...
    @property
    def size(self) -> int: ...
    def floor(self) -> float: ...
    def stages(self, low: float, high: float) -> Floats:
        """A row for each stage that reaches `low`: first layer, last + 1, type, units at `low`, least unit-seconds a
        sample in [low, high], seconds a sample with these units, parameter-server seconds a sample.
        """
    def relax(self, low: float, high: float, *, multipliers: Multipliers, max_stages: int) -> Path: ...
    def narrow(self, low: float, high: float, *, multipliers: Multipliers, cutoff: float) -> Graph: ...
    def search(
        self,
        low: float,
        high: float,
        *,
        multipliers: Multipliers,
        max_stages: int,
        tracked: list[int],
        track_rate: bool,
        cutoff: float,
        max_labels: int,
    ) -> Path: ...
