"""What a layer costs on hardware that is not at hand: a roofline, corrected by what was measured.

A layer is counted once for a batch (`Counted`), a unit of hardware has peak rates (`Rates`). The roofline says how long
the layer takes at least:

    work_s = max(flops / flops_per_s, bytes / bytes_per_s + random_bytes / random_bytes_per_s)

Arithmetic and memory overlap; streams and rows at random places share the memory, so they add up. Nothing runs at its
peak, and how far below it a layer stays is mostly the layer's: shapes, kernels, the number of calls. So its efficiency
is taken from the hardware at hand (h) and applied to the target (t):

    efficiency = work_s(h) / (compute_s measured on h - overhead_s(h))
    compute_s on t = work_s(t) / efficiency + overhead_s(t)

Efficiency carries over between hardware of one kind: from GPUs to GPUs, from CPUs to CPUs. With several of the target's
kind at hand it is their geometric mean. With none, that of the other kind is used, kept within `OTHER_KIND`: how well a
core's caches serve a layer says little of a GPU. With nothing measured it is `ASSUMED_EFFICIENCY`. On the very hardware
that was measured (the same rates) only that counts, and the measured time returns.

Exchange goes over the unit's link, and rows also over the bus to a device that has one (as in
`heterps.schedule.roofline`): rows and ids of the batch once, dense weights twice (reduce-scatter, all-gather).

    exchange_s = exchanged_bytes * (1 / link + 1 / bus) + 2 * parameters_bytes / link + round trip      (0 if no bytes)

It is stretched by as much as the exchange measured on the same kind was slower than this, never shortened: a faster one
did not go over the link. The parameter server's work `ps_s` does not depend on where the layer runs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from heterps.catalog import Entry
from heterps.errors import InvalidInput, did_you_mean
from heterps.plan import Cost
from heterps.schedule.paper import CPU, V100
from heterps.schedule.roofline import ROUND_TRIP_S, UNEVEN_SHARE
from heterps.units import BITS_PER_BYTE, GIGA

ASSUMED_EFFICIENCY = 0.5
"""Of a layer that was not measured anywhere. Assumed."""

OTHER_KIND = (0.05, 0.5)
"""Least and largest efficiency that is taken over from another kind of device. Assumed: what layers reach on both."""

PRECISIONS = ("float32", "bf16", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The work of one layer for one batch, forward, backward and update together.

    `flops` counts a multiply-add as two. `bytes` stream through memory, `random_bytes` are table rows touched at random
    places, and neither contains the other. `state_bytes` are weights and optimizer state. `parameters_bytes` are dense
    weights that every unit holds, so that their gradients are all-reduced. `exchanged_bytes` are rows and ids to and
    from a parameter server.
    """

    name: str
    flops: float
    bytes: float
    random_bytes: float = 0.0
    state_bytes: float = 0.0
    parameters_bytes: float = 0.0
    exchanged_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Peak rates of one unit. `overhead_s` is spent on each layer of each batch, however small.

    `bus_bytes_per_s` leads from the host's memory to the device, None if it computes in host memory. `link_gbps` is
    infinite where the link is free. `units_per_host` units share the work that is done once for a host.
    """

    flops_per_s: float
    bytes_per_s: float
    random_bytes_per_s: float
    link_gbps: float
    bus_bytes_per_s: float | None
    overhead_s: float
    units_per_host: int = 1

    @property
    def link_s_per_byte(self) -> float:
        """Seconds a byte takes over the unit's link; 0 if it is free."""
        return BITS_PER_BYTE / (self.link_gbps * GIGA)

    @property
    def bus_s_per_byte(self) -> float:
        """Seconds a byte takes from the host's memory to the device; 0 if it need not move."""
        return 1 / self.bus_bytes_per_s if self.bus_bytes_per_s is not None else 0.0


def rates_of(entry: Entry, *, precision: str = "float32") -> Rates:
    """The peak rates of one unit of a catalog entry.

    In bf16 and float16 a device without units for it computes at its float32 rate. Rates at random places and the
    overhead of a layer are published nowhere: both are those that the paper's devices are assumed to have.
    """
    if precision not in PRECISIONS:
        hint = did_you_mean(precision, PRECISIONS)
        raise InvalidInput(f"unknown precision {precision!r}; they are {', '.join(PRECISIONS)}.{hint}")
    like = V100 if entry.device == "cuda" else CPU
    half = {"float16": entry.peak_fp16_flops_per_s, "float32": None}.get(precision, entry.peak_bf16_flops_per_s)
    return Rates(
        flops_per_s=half or entry.peak_fp32_flops_per_s,
        bytes_per_s=entry.memory_bytes_per_s,
        random_bytes_per_s=entry.memory_bytes_per_s * like.row_efficiency,
        link_gbps=entry.bandwidth_gbps if entry.bandwidth_gbps is not None else math.inf,
        bus_bytes_per_s=entry.bus_bytes_per_s if entry.device == "cuda" else None,
        overhead_s=like.overhead_s,
        units_per_host=entry.units,
    )


def work_s(counted: Counted, rates: Rates) -> float:
    """The least seconds of computing for a batch on one unit, without the overhead of calling the layer."""
    memory_s = counted.bytes / rates.bytes_per_s + counted.random_bytes / rates.random_bytes_per_s
    return max(counted.flops / rates.flops_per_s, memory_s)


def roofline_s(counted: Counted, rates: Rates) -> float:
    """The least seconds of computing for a batch on one unit."""
    return work_s(counted, rates) + rates.overhead_s


def exchange_s(counted: Counted, rates: Rates) -> float:
    """The least seconds of exchanging parameters for a batch by one unit; 0 for a layer with nothing to exchange."""
    if not counted.exchanged_bytes and not counted.parameters_bytes:
        return 0.0
    return _rows_s(counted, rates) + _reduce_s(counted, rates) + ROUND_TRIP_S


def derive(
    counted: Counted,
    *,
    measured: Mapping[str, tuple[Rates, Cost]],
    target: Rates,
    same_device: Collection[str],
    server: Rates | None = None,
) -> Cost:
    """The layer's cost on one unit of `target`; formulas in the module's docstring.

    Args:
        counted: the layer.
        measured: name of hardware at hand -> its rates and what the layer was measured to cost there.
        target: rates of the hardware to derive for.
        same_device: those names of `measured` whose device is of the target's kind, `cuda` or `cpu`.
        server: rates of one unit that serves tables; only used where no measurement says what serving costs.

    Parallel fractions are means of those measured on the same kind. Elsewhere they are assumed as in
    `heterps.schedule.roofline`: overhead and round trips do not shrink with more units, a host's all-reduce is repeated
    by every host, and work never divides quite evenly.
    """
    kind = [pair for name, pair in measured.items() if name in same_device]
    alike = [pair for pair in kind if pair[0] == target] or kind
    efficiency = _efficiency(counted, alike, [*measured.values()])
    at_hand = [cost.compute_s for rates, cost in kind if rates == target]
    compute_s = _mean(at_hand) if at_hand else work_s(counted, target) / efficiency + target.overhead_s
    sync_s = exchange_s(counted, target) * _stretch(counted, alike)
    alphas = [cost.alpha for _, cost in alike if cost.compute_s > 0]
    betas = [cost.beta for _, cost in alike if cost.sync_s > 0]
    return Cost(
        compute_s=compute_s,
        sync_s=sync_s,
        alpha=_mean(alphas) if alphas else _assumed_alpha(counted, target),
        beta=_mean(betas) if betas else _assumed_beta(counted, target),
        ps_s=_ps_s(counted, [cost for _, cost in measured.values()], server),
        source="derived",
    )


def _efficiency(counted: Counted, alike: list[tuple[Rates, Cost]], anything: list[tuple[Rates, Cost]]) -> float:
    if same := _efficiencies(counted, alike):
        return math.exp(_mean([math.log(one) for one in same]))
    if other := _efficiencies(counted, anything):
        least, largest = OTHER_KIND
        return min(max(math.exp(_mean([math.log(one) for one in other])), least), largest)
    return ASSUMED_EFFICIENCY


def _efficiencies(counted: Counted, pairs: list[tuple[Rates, Cost]]) -> list[float]:
    """Of what took longer than its overhead; a layer that did not says nothing of efficiency."""
    return [
        work_s(counted, rates) / (cost.compute_s - rates.overhead_s)
        for rates, cost in pairs
        if cost.compute_s > rates.overhead_s and work_s(counted, rates) > 0
    ]


def _stretch(counted: Counted, alike: list[tuple[Rates, Cost]]) -> float:
    slower = [cost.sync_s / least for rates, cost in alike if (least := exchange_s(counted, rates)) > 0]
    return max([1.0, *slower])


def _ps_s(counted: Counted, costs: list[Cost], server: Rates | None) -> float:
    """Unit-seconds of serving: the most that was measured, else what link and memory of a server take."""
    most = max((cost.ps_s for cost in costs), default=0.0)
    if most > 0 or server is None or not counted.exchanged_bytes:
        return most
    return max(counted.exchanged_bytes * server.link_s_per_byte, counted.random_bytes / server.random_bytes_per_s)


def _assumed_alpha(counted: Counted, rates: Rates) -> float:
    least = roofline_s(counted, rates)
    serial_s = rates.overhead_s + UNEVEN_SHARE * (least - rates.overhead_s)
    return 1 - serial_s / least if least > 0 else 1.0


def _assumed_beta(counted: Counted, rates: Rates) -> float:
    least = exchange_s(counted, rates)
    serial_s = ROUND_TRIP_S + UNEVEN_SHARE * _rows_s(counted, rates) + _reduce_s(counted, rates) / rates.units_per_host
    return max(0.0, 1 - serial_s / least) if least > 0 else 1.0


def _rows_s(counted: Counted, rates: Rates) -> float:
    return counted.exchanged_bytes * (rates.link_s_per_byte + rates.bus_s_per_byte)


def _reduce_s(counted: Counted, rates: Rates) -> float:
    return 2 * counted.parameters_bytes * rates.link_s_per_byte


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
