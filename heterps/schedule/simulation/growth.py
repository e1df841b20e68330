r"""A profile for a batch of other size.

Of a layer's seconds for a batch, some are spent once a step, whatever its size, and the rest grows with the samples.
What more units do not shorten is, in a profile, the first and `UNEVEN_SHARE` of the second (`heterps.schedule.roofline`
and `heterps.profile.assemble` make it so), so the first is

    fixed_s = serial_s - UNEVEN_SHARE · whole_s,   at least 0.

Rows, activations and the server's work grow with the samples. Dense gradients are summed once a step, as many for any
batch; those of a layer whose state is not sharded are all that it exchanges.
"""

from __future__ import annotations

from heterps.plan import Cost, Layer, Profile
from heterps.schedule.roofline import UNEVEN_SHARE


def grown(profile: Profile, batch_size: int) -> Profile:
    """What the layers cost for a batch of so many samples."""
    times = batch_size / profile.batch_size
    layers = tuple(_grown_layer(layer, times) for layer in profile.layers)
    return profile.model_copy(update={"batch_size": batch_size, "layers": layers})


def _grown_layer(layer: Layer, times: float) -> Layer:
    bytes_ = {"output_bytes": round(layer.output_bytes * times), "input_bytes": round(layer.input_bytes * times)}
    costs = {name: _grown_cost(cost, times, rows=layer.sharded) for name, cost in layer.costs.items()}
    return layer.model_copy(update={**bytes_, "costs": costs})


def _grown_cost(cost: Cost, times: float, *, rows: bool) -> Cost:
    compute_s, alpha = _grown_seconds(cost.compute_s, cost.alpha, times)
    sync_s, beta = _grown_seconds(cost.sync_s, cost.beta, times) if rows else (cost.sync_s, cost.beta)
    changed = {"compute_s": compute_s, "alpha": alpha, "sync_s": sync_s, "beta": beta, "ps_s": cost.ps_s * times}
    return cost.model_copy(update=changed)


def _grown_seconds(whole_s: float, parallel: float, times: float) -> tuple[float, float]:
    """Seconds, and the part of them that more units shorten."""
    if whole_s == 0:
        return whole_s, parallel
    serial_s = (1 - parallel) * whole_s
    fixed_s = max(0.0, serial_s - UNEVEN_SHARE * whole_s)
    grown_s = fixed_s + (whole_s - fixed_s) * times
    return grown_s, 1 - (fixed_s + (serial_s - fixed_s) * times) / grown_s
