"""Costs on hardware that is not at hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterps.catalog.collection import Catalog
from heterps.catalog.parts import published
from heterps.errors import InvalidInput
from heterps.plan import Cost
from heterps.profile.derive import (
    ASSUMED_EFFICIENCY,
    OTHER_KIND,
    Counted,
    Rates,
    derive,
    exchange_s,
    rates_of,
    roofline_s,
)

GPU = Rates(
    flops_per_s=1e13, bytes_per_s=1e12, random_bytes_per_s=2.5e11, link_gbps=80, bus_bytes_per_s=1e10, overhead_s=5e-5,
    units_per_host=8,
)  # fmt: skip
CORE = Rates(
    flops_per_s=1e11, bytes_per_s=4e9, random_bytes_per_s=1e9, link_gbps=0.8, bus_bytes_per_s=None, overhead_s=2e-5
)
FC = Counted(name="fc", flops=1e10, bytes=2e8, state_bytes=1.2e7, parameters_bytes=4e6)
TABLE = Counted(name="emb", flops=0, bytes=1e7, random_bytes=1e8, state_bytes=1e9, exchanged_bytes=2e7)
COST = Cost(compute_s=4e-3, sync_s=2e-3, alpha=0.9, beta=0.8, ps_s=1e-3, source="measured")

rates = st.builds(
    Rates,
    flops_per_s=st.floats(1e9, 1e15),
    bytes_per_s=st.floats(1e9, 1e13),
    random_bytes_per_s=st.floats(1e8, 1e13),
    link_gbps=st.floats(0.1, 1e3),
    bus_bytes_per_s=st.none() | st.floats(1e9, 1e11),
    overhead_s=st.floats(0, 1e-3),
    units_per_host=st.integers(1, 64),
)
counts = st.just(0.0) | st.floats(1.0, 1e12)
layers = st.builds(
    Counted,
    name=st.just("layer"),
    flops=counts,
    bytes=st.floats(1.0, 1e12),
    random_bytes=counts,
    parameters_bytes=counts,
    exchanged_bytes=counts,
)
costs = st.builds(
    Cost,
    compute_s=st.floats(1e-6, 10),
    sync_s=st.just(0.0) | st.floats(1e-6, 10),
    alpha=st.floats(0, 1),
    beta=st.floats(0, 1),
    ps_s=st.just(0.0) | st.floats(1e-6, 1),
    source=st.just("measured"),
)


def test_the_roofline_by_hand() -> None:
    assert roofline_s(FC, GPU) == pytest.approx(1e-3 + 5e-5)  # 1e10 FLOPs at 1e13; memory takes 2e-4
    assert roofline_s(TABLE, GPU) == pytest.approx(1e-5 + 4e-4 + 5e-5)  # streams and rows share the memory
    assert roofline_s(FC, CORE) == pytest.approx(1e-1 + 2e-5)


def test_a_derived_cost_by_hand() -> None:
    target = replace(GPU, flops_per_s=5e12, link_gbps=40)
    derived = derive(FC, measured={"gpu": (GPU, COST)}, target=target, same_device=["gpu"])
    assert derived.compute_s == pytest.approx(2 * (4e-3 - 5e-5) + 5e-5)
    exchange_at_hand_s = 2 * 4e6 * 8 / 80e9 + 1e-4  # 0.9 ms, measured were 2 ms
    exchange_s = 2 * 4e6 * 8 / 40e9 + 1e-4
    assert derived.sync_s == pytest.approx(exchange_s * 2e-3 / exchange_at_hand_s)
    assert (derived.alpha, derived.beta, derived.ps_s, derived.source) == (0.9, 0.8, 1e-3, "derived")


def test_rows_also_cross_the_bus() -> None:
    derived = derive(TABLE, measured={}, target=GPU, same_device=[])
    assert derived.sync_s == pytest.approx(2e7 * (8 / 80e9 + 1e-10) + 1e-4)
    on_host = derive(TABLE, measured={}, target=replace(GPU, bus_bytes_per_s=None), same_device=[])
    assert on_host.sync_s == pytest.approx(2e7 * 8 / 80e9 + 1e-4)


def test_an_exchange_faster_than_the_link_did_not_use_it() -> None:
    in_process = COST.model_copy(update={"sync_s": 1e-6})
    target = replace(GPU, link_gbps=40)
    derived = derive(FC, measured={"gpu": (GPU, in_process)}, target=target, same_device=["gpu"])
    assert derived.sync_s == pytest.approx(2 * 4e6 * 8 / 40e9 + 1e-4)


def test_the_same_kind_goes_before_another() -> None:
    slow_core = (CORE, COST.model_copy(update={"compute_s": 50.0, "alpha": 0.1}))
    target = replace(GPU, flops_per_s=2e13)
    both = derive(FC, measured={"cpu": slow_core, "gpu": (GPU, COST)}, target=target, same_device=["gpu"])
    alone = derive(FC, measured={"gpu": (GPU, COST)}, target=target, same_device=["gpu"])
    assert both == alone


def test_several_of_one_kind_are_averaged() -> None:
    slower = COST.model_copy(update={"compute_s": 4 * (4e-3 - 5e-5) + 5e-5, "alpha": 0.7})
    measured = {"a": (GPU, COST), "b": (replace(GPU, bus_bytes_per_s=1e11), slower)}
    target = replace(GPU, bus_bytes_per_s=1e12)
    derived = derive(FC, measured=measured, target=target, same_device=["a", "b"])
    assert derived.compute_s == pytest.approx(2 * (4e-3 - 5e-5) + 5e-5), "the geometric mean of 1 and 4, and a call"
    assert derived.alpha == pytest.approx(0.8)


@pytest.mark.parametrize(("factor", "efficiency"), [(1e-3, OTHER_KIND[1]), (4.0, 0.25), (1e6, OTHER_KIND[0])])
def test_efficiency_of_another_kind_is_capped(factor: float, efficiency: float) -> None:
    cost = COST.model_copy(update={"compute_s": factor * 1e-1 + 2e-5})
    derived = derive(FC, measured={"cpu": (CORE, cost)}, target=GPU, same_device=[])
    assert derived.compute_s == pytest.approx(1e-3 / efficiency + 5e-5)
    assert derived.alpha != cost.alpha, "fractions are not taken over from another kind"


def test_without_measurements_efficiency_is_assumed() -> None:
    derived = derive(FC, measured={}, target=GPU, same_device=[])
    assert derived.compute_s == pytest.approx(1e-3 / ASSUMED_EFFICIENCY + 5e-5)
    assert derived.alpha == pytest.approx(1 - (5e-5 + 5e-4 * 1e-3) / 1.05e-3)
    assert derived.beta == pytest.approx(1 - (1e-4 + 8e-4 / 8) / 9e-4)


def test_a_layer_that_took_no_time_says_nothing_of_efficiency() -> None:
    free = Cost(compute_s=0.0, sync_s=0.0, alpha=0.3, beta=0.3)
    derived = derive(FC, measured={"gpu": (replace(GPU, link_gbps=1), free)}, target=GPU, same_device=["gpu"])
    assert derived == derive(FC, measured={}, target=GPU, same_device=[])


def test_a_layer_faster_than_a_call_says_nothing_of_efficiency() -> None:
    quick = Cost(compute_s=0.9 * GPU.overhead_s, sync_s=0.0)
    target = replace(GPU, flops_per_s=2e13)
    derived = derive(FC, measured={"gpu": (GPU, quick)}, target=target, same_device=["gpu"])
    assert derived.compute_s == pytest.approx(5e-4 / ASSUMED_EFFICIENCY + 5e-5)
    assert derive(FC, measured={"gpu": (GPU, quick)}, target=GPU, same_device=["gpu"]).compute_s == quick.compute_s


def test_the_overhead_of_a_call_is_the_targets() -> None:
    slow_calls = replace(GPU, overhead_s=1.0)
    derived = derive(FC, measured={"gpu": (GPU, COST)}, target=slow_calls, same_device=["gpu"])
    assert derived.compute_s == pytest.approx(4e-3 - 5e-5 + 1.0)


def test_the_server_is_only_asked_where_nothing_was_measured() -> None:
    target = replace(GPU, flops_per_s=1e12)
    assert derive(TABLE, measured={"g": (GPU, COST)}, target=target, same_device=["g"], server=CORE).ps_s == COST.ps_s
    assert derive(TABLE, measured={}, target=target, same_device=[]).ps_s == 0
    assert derive(TABLE, measured={}, target=target, same_device=[], server=CORE).ps_s == pytest.approx(0.2)
    assert derive(FC, measured={}, target=target, same_device=[], server=CORE).ps_s == 0


@given(layer=layers, at_hand=rates, other=rates, cost=costs)
def test_on_the_hardware_at_hand_the_measured_time_returns(
    layer: Counted, at_hand: Rates, other: Rates, cost: Cost
) -> None:
    measured = {"here": (at_hand, cost), "other": (replace(other, overhead_s=1.0), COST)}
    derived = derive(layer, measured=measured, target=at_hand, same_device=["here", "other"])
    assert derived.compute_s == pytest.approx(cost.compute_s)
    assert derived.sync_s == pytest.approx(max(cost.sync_s, least) if (least := exchange_s(layer, at_hand)) else 0)
    assert derived.alpha == cost.alpha
    assert derived.source == "derived"


@given(layer=layers, at_hand=rates, cost=costs, target=rates, data=st.data())
def test_faster_hardware_never_takes_longer(
    layer: Counted, at_hand: Rates, cost: Cost, target: Rates, data: st.DataObject
) -> None:
    peaks = ("flops_per_s", "bytes_per_s", "random_bytes_per_s", "link_gbps")
    faster = data.draw(st.sets(st.sampled_from(peaks), min_size=1))
    better = replace(target, **{name: 2 * getattr(target, name) for name in faster})
    known = at_hand in (target, better)  # what was measured returns, though calls are assumed to take longer
    assume(not known or cost.compute_s > at_hand.overhead_s)
    for same in (["here"], []):
        before = derive(layer, measured={"here": (at_hand, cost)}, target=target, same_device=same)
        after = derive(layer, measured={"here": (at_hand, cost)}, target=better, same_device=same)
        assert after.compute_s <= before.compute_s * (1 + 1e-9)
        assert after.sync_s <= before.sync_s


@given(layer=layers, at_hand=rates, slowness=st.floats(1, 100), target=rates, factor=st.floats(1, 100))
def test_more_work_costs_more(layer: Counted, at_hand: Rates, slowness: float, target: Rates, factor: float) -> None:
    more = replace(
        layer, flops=layer.flops * factor, bytes=layer.bytes * factor, random_bytes=layer.random_bytes * factor,
        exchanged_bytes=layer.exchanged_bytes * factor, parameters_bytes=layer.parameters_bytes * factor,
    )  # fmt: skip

    def cost(work: Counted) -> Cost:
        measured = Cost(compute_s=slowness * roofline_s(work, at_hand), sync_s=0.0)
        return derive(work, measured={"here": (at_hand, measured)}, target=target, same_device=["here"])

    assert cost(more).compute_s >= cost(layer).compute_s * (1 - 1e-9)
    assert cost(more).sync_s >= cost(layer).sync_s


@given(layer=layers, at_hand=rates, cost=costs, target=rates)
def test_every_derived_cost_is_valid_and_says_so(layer: Counted, at_hand: Rates, cost: Cost, target: Rates) -> None:
    for same in (["here"], []):
        derived = derive(layer, measured={"here": (at_hand, cost)}, target=target, same_device=same)
        assert derived.source == "derived"
        assert derived.compute_s > 0
        assert (derived.sync_s > 0) == bool(layer.exchanged_bytes or layer.parameters_bytes)
        assert 0 <= derived.alpha <= 1
        assert 0 <= derived.beta <= 1


def test_rates_of_entries() -> None:
    catalog = Catalog(published())
    h200 = rates_of(catalog.get("aws-p5en-h200"))
    assert (h200.flops_per_s, h200.bytes_per_s, h200.link_gbps, h200.bus_bytes_per_s) == (67e12, 4.8e12, 400, 63e9)
    assert h200.random_bytes_per_s < h200.bytes_per_s
    assert h200.units_per_host == 8
    assert rates_of(catalog.get("h200"), precision="bf16").flops_per_s == 990e12
    assert rates_of(catalog.get("v100"), precision="bfloat16").flops_per_s == 15.7e12, "it has no units for bfloat16"
    assert rates_of(catalog.get("v100"), precision="float16").flops_per_s == 125e12
    assert rates_of(catalog.get("cpu")).bus_bytes_per_s is None
    with pytest.raises(InvalidInput, match="unknown precision 'float64'"):
        rates_of(catalog.get("cpu"), precision="float64")


def test_an_entry_without_a_bandwidth_has_a_free_link() -> None:
    entry = Catalog(published()).get("t4").model_copy(update={"bandwidth_gbps": None})
    assert derive(FC, measured={}, target=rates_of(entry), same_device=[]).sync_s == pytest.approx(1e-4)
