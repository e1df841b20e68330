"""What a layer costs on a device, derived from counts and rates instead of measured.

A layer is counted (`LayerWork`): FLOPs, bytes and table rows of one sample, bytes of weights. A device has rates
(`Device`). For one batch of B samples on one unit:

    passes_s  = passes * B * max(FLOPs / (efficiency * peak), bytes / bandwidth)
    compute_s = passes_s + update_s + overhead_s
    sync_s    = rows_s + reduce_s + round_trip_s          (0 for a layer without weights)
    ps_s      = B * max(bytes exchanged / server's link, bytes touched / server's bandwidth for rows)

Passes are 3 for a layer with weights (forward, backward towards inputs, backward towards weights) and 2 for one
without; for table rows they are gathering, finding the distinct ones and summing gradients by row. Rows lie at random
places, so their bandwidth is a share of the streaming one. Reading dense weights is left out: a batch reuses them.

update_s streams the gradients, weights and Adam moments of a dense layer through memory once a batch; rows are updated
by the parameter server, as part of ps_s. reduce_s moves dense weights over the unit's link twice (reduce-scatter,
all-gather). rows_s moves every looked-up row with its id over the link twice (pull, push) and, to a device behind a
bus, over that bus too: rows are staged in host memory, so the two add up. Rows that samples share are not deduplicated.

With k units each takes B/k samples. What that does not shorten is serial, which gives the parallel fractions:

    1 - alpha = (overhead_s + uneven * passes_s + update_s / host) / compute_s
    1 - beta  = (round_trip_s + uneven * rows_s + reduce_s / host) / sync_s

Every unit launches every layer and waits its round trip however few samples it has, and work never divides quite
evenly. Dense weights cost per batch, not per sample: the units of one server (`host` of them) share that work, each
updating and exchanging one part and handing it round over shared memory or NVLink (taken as free), but every server
repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass

from heterps.plan import Cost, Layer
from heterps.units import BITS_PER_BYTE, GIGA

FLOAT_BYTES = 4
ID_BYTES = 8

ADAM_KEEPS = 3
"""Floats kept for each dense weight: the weight and Adam's two moments."""

ADAM_MOVES = 7
"""Floats moved to update a dense weight: its gradient is read, the weight and both moments are read and written."""

UNEVEN_SHARE = 5e-4
"""Share of divisible work that more units do not shorten. Assumed: a hundred units reach 95% efficiency."""

ROUND_TRIP_S = 1e-4
"""Seconds of latency of a layer's exchange. Assumed: request and reply over TCP within a data center."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Rates of one unit. `bus_bytes_per_s` leads from host memory to the device, None if it computes in host memory."""

    name: str
    peak_flops_per_s: float
    compute_efficiency: float
    memory_bytes_per_s: float
    row_efficiency: float
    overhead_s: float
    link_gbps: float
    bus_bytes_per_s: float | None
    units_per_host: int

    @property
    def compute_flops_per_s(self) -> float:
        """FLOPs a second that layers reach."""
        return self.peak_flops_per_s * self.compute_efficiency

    @property
    def row_bytes_per_s(self) -> float:
        """Bytes a second of table rows, which lie at random places in memory."""
        return self.memory_bytes_per_s * self.row_efficiency

    @property
    def link_bytes_per_s(self) -> float:
        """Bytes a second over the unit's link."""
        return self.link_gbps * GIGA / BITS_PER_BYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """What one layer does: `flops`, `moved_bytes`, `input_bytes`, `output_bytes` and `rows` for one sample, forward.

    `rows` of `row_bytes` are looked up in a table of `parameter_bytes`; both are 0 for a dense layer. `output_bytes` is
    all that crosses to the next layer, with what earlier layers made for later ones.
    """

    name: str
    kind: str
    flops: float
    moved_bytes: float
    input_bytes: int
    output_bytes: int
    parameter_bytes: int = 0
    rows: int = 0
    row_bytes: int = 0
    sharded: bool = False

    @property
    def dense_bytes(self) -> int:
        """Bytes of weights that each batch updates as a whole."""
        return 0 if self.rows else self.parameter_bytes

    @property
    def state_bytes(self) -> int:
        """Weights and optimizer state: Adam for dense weights, row-wise Adagrad (one float a row) for tables."""
        if self.rows:
            return self.parameter_bytes + self.parameter_bytes // self.row_bytes * FLOAT_BYTES
        return self.parameter_bytes * ADAM_KEEPS

    @property
    def exchanged_bytes(self) -> int:
        """Bytes a sample between unit and parameter server: rows pulled, gradients pushed, ids with both."""
        return self.rows * 2 * (self.row_bytes + ID_BYTES)

    @property
    def served_bytes(self) -> int:
        """Bytes a sample in the server's memory: a row is read for the pull, it and its state updated by the push."""
        return self.rows * (3 * self.row_bytes + 2 * FLOAT_BYTES)


def derive_layer(work: LayerWork, *, batch_size: int, devices: tuple[Device, ...], server: Device) -> Layer:
    """The layer of a profile, with a derived cost on each device."""
    return Layer(
        name=work.name,
        kind=work.kind,
        output_bytes=work.output_bytes * batch_size,
        input_bytes=work.input_bytes * batch_size,
        state_bytes=work.state_bytes,
        sharded=work.sharded,
        costs={
            device.name: derive_cost(work, batch_size=batch_size, device=device, server=server) for device in devices
        },
    )


def derive_cost(work: LayerWork, *, batch_size: int, device: Device, server: Device) -> Cost:
    """The layer on one unit of the device, with units of `server` behind it; formulas in the module's docstring."""
    passes = 3 if work.parameter_bytes else 2
    bandwidth = device.row_bytes_per_s if work.rows else device.memory_bytes_per_s
    passes_s = passes * batch_size * max(work.flops / device.compute_flops_per_s, work.moved_bytes / bandwidth)
    update_s = ADAM_MOVES * work.dense_bytes / device.memory_bytes_per_s
    compute_s = passes_s + update_s + device.overhead_s

    bus_s_per_byte = 1 / device.bus_bytes_per_s if device.bus_bytes_per_s else 0.0
    rows_s = batch_size * work.exchanged_bytes * (1 / device.link_bytes_per_s + bus_s_per_byte)
    reduce_s = 2 * work.dense_bytes / device.link_bytes_per_s
    sync_s = rows_s + reduce_s + ROUND_TRIP_S if work.parameter_bytes else 0.0

    host = device.units_per_host
    serial_s = device.overhead_s + UNEVEN_SHARE * passes_s + update_s / host
    sync_serial_s = ROUND_TRIP_S + UNEVEN_SHARE * rows_s + reduce_s / host
    server_s = max(work.exchanged_bytes / server.link_bytes_per_s, work.served_bytes / server.row_bytes_per_s)
    return Cost(
        compute_s=compute_s,
        sync_s=sync_s,
        alpha=1 - serial_s / compute_s,
        beta=1 - sync_serial_s / sync_s if sync_s else 1.0,
        ps_s=batch_size * server_s,
        source="derived",
    )
