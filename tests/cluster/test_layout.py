"""From a plan to processes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.errors import InvalidInput
from heterps.plan import Plan
from heterps.runtime.cluster.layout import Seat, lay_out, missing
from tests.runtime.plans import make_plan

UNITS = st.lists(st.integers(1, 40), min_size=1, max_size=4)


def plan_of(units: list[int], *, device: str = "cpu", server_units: int | None = None) -> Plan:
    plan = make_plan(len(units), range(1, len(units)), units=units, device=device)
    if server_units is None:
        return plan
    return Plan.model_validate({**plan.to_dict(), "parameter_server": {"type": "gamma", "units": server_units}})


@given(units=UNITS, node_cpus=st.integers(1, 16), wanted=st.none() | st.integers(1, 6))
def test_units_are_shared_out(units: list[int], node_cpus: int, wanted: int | None):
    layout = lay_out(plan_of(units), tables=1, node_cpus=node_cpus, replicas=wanted)
    for stage, planned in zip(layout.stages, units, strict=True):
        assert sum(stage.shares) == planned
        assert max(stage.shares) - min(stage.shares) <= 1
        if wanted is None:
            assert max(stage.shares) <= node_cpus
            assert stage.replicas == -(-planned // node_cpus)
        else:
            assert stage.replicas == min(wanted, planned)


@given(units=UNITS, micro_batch=st.integers(0, 100), wanted=st.integers(1, 6))
def test_every_micro_batch_has_one_owner_in_each_stage(units: list[int], micro_batch: int, wanted: int):
    layout = lay_out(plan_of(units), tables=0, replicas=wanted)
    for stage in layout.stages:
        owner = layout.owner(stage.number, micro_batch)
        assert owner in layout.seats()
        assert owner.replica == micro_batch % stage.replicas


@given(units=UNITS, shards=st.integers(1, 5), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_what_fits_has_a_place_and_what_lacks_is_named(units: list[int], shards: int, sizes: list[int]):
    layout = lay_out(plan_of(units), tables=1, node_cpus=max(sizes), shards=shards)
    demands = layout.demands({})
    assert sum(demand["CPU"] for demand in demands) == sum(units) + shards
    lack = missing(demands, [{"CPU": float(size)} for size in sizes])
    if sum(units) + shards > sum(sizes):
        assert lack is not None
        assert f"{sum(units) + shards} needed" in lack
        assert f"{sum(sizes)} there" in lack
    assert missing(demands, [{"CPU": demand["CPU"]} for demand in demands]) is None


def test_gpus_have_a_replica_each():
    layout = lay_out(plan_of([3], device="cuda"), tables=0)
    assert layout.stages[0].shares == (1, 1, 1)
    assert layout.demands({}) == [{"GPU": 1.0}] * 3
    assert missing(layout.demands({}), [{"CPU": 8.0, "GPU": 2.0}]) is not None
    assert lay_out(plan_of([3], device="cuda"), tables=0, devices={"alpha": "cpu"}).demands({}) == [{"CPU": 1.0}] * 3


def test_shards_are_those_of_the_plan():
    assert lay_out(plan_of([1], server_units=3), tables=1).shards == 3
    assert lay_out(plan_of([1], server_units=0), tables=1).shards == 1
    assert lay_out(plan_of([1], server_units=3), tables=0).shards == 0
    assert lay_out(plan_of([1], server_units=3), tables=1, shards=2).shards == 2


def test_a_type_with_a_resource_of_its_name_is_asked_for_by_it():
    layout = lay_out(plan_of([2, 1], server_units=1), tables=1, node_cpus=8)
    needed = layout.demands({"CPU": 8.0, "alpha": 2.0, "gamma": 1.0})
    assert needed == [{"CPU": 2.0, "alpha": 2.0}, {"CPU": 1.0}, {"CPU": 1.0, "gamma": 1.0}]
    assert missing(needed, [{"CPU": 8.0}]) is not None


def test_seats_are_in_order():
    layout = lay_out(plan_of([2, 1]), tables=0, replicas=2)
    assert layout.seats() == [Seat(0, 0), Seat(0, 1), Seat(1, 0)]


@pytest.mark.parametrize("options", [{"replicas": [1]}, {"replicas": 0}, {"replicas": [1, 0]}, {"shards": -1}])
def test_what_makes_no_sense_is_refused(options: dict[str, object]):
    with pytest.raises(InvalidInput):
        lay_out(plan_of([2, 2]), tables=1, **options)  # type: ignore[arg-type]
