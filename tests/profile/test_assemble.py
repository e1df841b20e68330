"""Profiles of clusters, from a measurement written by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import heterps
from heterps.catalog import Catalog, Entry
from heterps.catalog.parts import published
from heterps.errors import InvalidInput
from heterps.plan import Cluster, Cost, Profile, ResourceType
from heterps.profile.assemble import Hand, assemble, find_type
from heterps.profile.hardware import Gpu
from tests.profile.measurements import CORES, H200, SERVED, cluster, hardware, measurement

CATALOG = Catalog(published())
CPU = ResourceType(device="cpu", price_per_hour=0.04)
CUDA = ResourceType(device="cuda", price_per_hour=3.0)
RTX = Gpu(name="NVIDIA GeForce RTX 4090", model="geforce-rtx-4090", count=1, memory_gb=25.4)


def costs(profile: Profile, type_: str) -> list[Cost]:
    return [layer.costs[type_] for layer in profile.layers]


@pytest.mark.parametrize("name", ["cpu", "my-core", "v100"])
def test_cores_are_at_hand_under_names_of_their_own(name: str) -> None:
    assert find_type(name, CPU, hardware(), CATALOG) == Hand("cpu", CORES)


def test_a_core_of_the_catalog_is_another() -> None:
    found = find_type("aws-c7i-core", CPU, hardware(), CATALOG)
    assert isinstance(found, Entry)
    assert found.name == "aws-c7i-core"


@pytest.mark.parametrize("name", ["h200", "H200", "aws-p5en-h200", "my-gpu"])
def test_the_gpu_here_is_at_hand(name: str) -> None:
    assert find_type(name, CUDA, hardware(H200), CATALOG) == Hand("cuda", 2)


@pytest.mark.parametrize("gpus", [(), (RTX,)])
def test_a_gpu_that_is_elsewhere_comes_from_the_catalog(gpus: tuple[Gpu, ...]) -> None:
    found = find_type("h200", CUDA, hardware(*gpus), CATALOG)
    assert isinstance(found, Entry)
    assert found.accelerator == "H200"


def test_a_gpu_the_catalog_does_not_know_is_at_hand_under_its_own_name() -> None:
    assert find_type("geforce-rtx-4090", CUDA, hardware(RTX), CATALOG) == Hand("cuda", 1)


@pytest.mark.parametrize("name", ["warp9", "cpu", "aws-c7i-core"])
def test_an_unknown_gpu_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"type '{name}': this machine has no such GPU.*catalog"):
        assemble(measurement(), cluster(**{name.replace("-", "__"): {"device": "cuda"}}), catalog=CATALOG)


def test_cores_of_this_machine_exchange_nothing_and_one_process_reads() -> None:
    profile = assemble(measurement(), cluster(cpu={"limit": CORES}), catalog=CATALOG)
    first, *others = costs(profile, "cpu")
    assert (first.sync_s, first.beta) == (0.005, 0)
    assert [cost.sync_s for cost in others] == [0, 0]
    assert [cost.compute_s for cost in [first, *others]] == pytest.approx([0.02, 0.04, 0.001])
    assert [cost.alpha for cost in [first, *others]] == pytest.approx([0.9, 0.8, 0.0], abs=1e-6)


@pytest.mark.parametrize("limit", [None, CORES + 1])
def test_more_cores_than_here_sum_gradients_and_each_reads_its_share(limit: int | None) -> None:
    profile = assemble(measurement(), cluster(cpu={"limit": limit}), catalog=CATALOG)
    embedding, fc, loss = costs(profile, "cpu")
    assert [cost.beta for cost in (embedding, fc, loss)] == [1, 0, 1], "every machine sums all gradients"
    assert embedding.sync_s == pytest.approx(0.005)
    assert fc.sync_s == pytest.approx(1e6 / 1e9)
    assert loss.sync_s == 0


def test_over_machines_only_what_a_micro_batch_costs_anyway_is_serial() -> None:
    profile = assemble(measurement(), cluster(cpu={"limit": None}), catalog=CATALOG)
    for cost, seconds in zip(costs(profile, "cpu"), (0.02, 0.04, 0.001), strict=True):
        assert cost.compute_s == pytest.approx(seconds)
        assert cost.alpha == pytest.approx(1 - 2 * 1e-5 / seconds - 5e-4)


def test_a_parameter_server_costs_what_was_measured_at_one() -> None:
    made = cluster(cpu={"limit": CORES}, parameter_server="cpu")
    embedding, fc, _ = costs(assemble(measurement(), made, catalog=CATALOG), "cpu")
    assert (embedding.ps_s, embedding.sync_s, embedding.beta) == (SERVED.ps_s, pytest.approx(SERVED.sync_s + 0.005), 1)
    assert (fc.ps_s, fc.sync_s) == (0, pytest.approx(1e6 / 1e9))


def test_a_slow_link_sets_the_pace_of_the_exchange() -> None:
    made = cluster(cpu={"bandwidth_gbps": 1.0}, parameter_server="cpu")
    embedding, fc, _ = costs(assemble(measurement(), made, catalog=CATALOG), "cpu")
    assert embedding.sync_s == pytest.approx(2.5e6 * 8 / 1e9 + 0.005)
    assert fc.sync_s == pytest.approx(2 * 1e6 * 8 / 1e9)
    together = CATALOG.get("cpu").units
    assert 1 - fc.beta == pytest.approx(max(1 / together, 1e-3 / fc.sync_s)), "units of a machine share the work"


def test_the_part_of_a_servers_exchange_that_workers_do_not_share_is_serial() -> None:
    half = measurement(data_s=0.0)
    served = half.layers[0].model_copy(update={"served": SERVED.model_copy(update={"beta": 0.5})})
    half = half.model_copy(update={"layers": (served, *half.layers[1:])})
    made = cluster(cpu={"limit": CORES}, parameter_server="cpu")
    embedding = costs(assemble(half, made, catalog=CATALOG), "cpu")[0]
    assert (embedding.sync_s, embedding.beta) == (pytest.approx(SERVED.sync_s), pytest.approx(0.5))
    slow = cluster(cpu={"bandwidth_gbps": 0.1}, parameter_server="cpu")
    embedding = costs(assemble(half, slow, catalog=CATALOG), "cpu")[0]
    assert embedding.sync_s * (1 - embedding.beta) == pytest.approx(SERVED.sync_s / 2), "a slow link is each unit's own"


def test_a_gpu_at_hand_costs_what_was_measured() -> None:
    profile = assemble(measurement(H200), cluster(h200={"device": "cuda", "limit": 1}), catalog=CATALOG)
    assert [cost.compute_s for cost in costs(profile, "h200")] == [0.001, 0.0005, 0.0001]
    assert [cost.source for cost in costs(profile, "h200")] == ["measured"] * 3


def test_every_cost_says_where_it_comes_from() -> None:
    made = cluster(cpu={"limit": 4}, aws__c7i__core={}, h200={"device": "cuda"}, parameter_server="aws-c7i-core")
    profile = assemble(measurement(), made, catalog=CATALOG)
    assert {cost.source for cost in costs(profile, "cpu")} == {"measured"}
    assert {cost.source for name in ("aws-c7i-core", "h200") for cost in costs(profile, name)} == {"derived"}


def test_derived_types_read_too() -> None:
    read, free = (
        assemble(measurement(data_s=data_s), cluster(aws__c7i__core={}, v100={"device": "cuda"}), catalog=CATALOG)
        for data_s in (0.005, 0.0)
    )
    for name in ("aws-c7i-core", "v100"):
        first, unread = costs(read, name)[0], costs(free, name)[0]
        assert first.sync_s == pytest.approx(unread.sync_s + 0.005)
        assert first.sync_s * (1 - first.beta) == pytest.approx(unread.sync_s * (1 - unread.beta)), "each its share"
        assert costs(read, name)[1:] == costs(free, name)[1:]


def test_derived_exchange_is_near_what_the_link_takes() -> None:
    """A server was measured at 4 ms for 2.5 MB, about twice what they take between processes here."""
    made = cluster(aws__c7i__core={}, parameter_server="aws-c7i-core")
    embedding = costs(assemble(measurement(data_s=0.0), made, catalog=CATALOG), "aws-c7i-core")[0]
    link_gbps = CATALOG.get("aws-c7i-core").bandwidth_gbps
    assert link_gbps is not None
    link_s = 2.5e6 * 8 / (link_gbps * 1e9)
    assert link_s < embedding.sync_s < 4 * link_s
    assert embedding.ps_s == SERVED.ps_s


def test_a_faster_core_is_derived_to_take_less_time() -> None:
    derived = costs(assemble(measurement(), cluster(aws__c7i__core={}), catalog=CATALOG), "aws-c7i-core")
    slow = hardware().model_copy(
        update={"core": hardware().core.model_copy(update={"flops_per_s": 1e10, "bytes_per_s": 1e9})}  # type: ignore[union-attr]
    )
    faster = costs(assemble(measurement(hardware=slow), cluster(aws__c7i__core={}), catalog=CATALOG), "aws-c7i-core")
    assert faster[1].compute_s < derived[1].compute_s / 5, "ten times the core that was measured, not once"


def test_what_the_profile_keeps_of_the_measurement() -> None:
    measured = measurement()
    profile = assemble(measured, cluster(cpu={"limit": 4}), catalog=CATALOG)
    assert (profile.model, profile.batch_size) == ("small", 1024)
    for made, layer in zip(profile.layers, measured.layers, strict=True):
        assert (made.name, made.kind, made.sharded) == (layer.name, layer.kind, layer.sharded)
        assert (made.input_bytes, made.output_bytes, made.state_bytes) == (1000, 2000, 3000)


@pytest.mark.parametrize("gpus", [(), (H200,)])
@pytest.mark.parametrize("server", [None, "cpu"])
def test_the_profile_saves_loads_and_plans(tmp_path: Path, gpus: tuple[Gpu, ...], server: str | None) -> None:
    made: Cluster = cluster(
        cpu={"limit": 16, "bandwidth_gbps": 10.0}, h200={"device": "cuda", "limit": 2, "price_per_hour": 3.0},
        parameter_server=server,
    )  # fmt: skip
    profile = assemble(measurement(*gpus), made, catalog=CATALOG)
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile
    plan = heterps.plan(tmp_path / "profile.json", made, min_throughput=1000.0)
    assert plan.predicted.throughput >= 1000
    assert (plan.parameter_server is not None) == (server is not None)


def test_calibrated_times_reach_the_profile() -> None:
    factors: dict[str, Any] = {"cpu": [2.0, 1.0, 1.0], "gpu": [1.0, 3.0, 1.0]}
    scaled = measurement(H200).scaled(factors)
    made = cluster(cpu={"limit": 4}, h200={"device": "cuda", "limit": 2})
    profile = assemble(scaled, made, catalog=CATALOG)
    assert [cost.compute_s for cost in costs(profile, "cpu")] == pytest.approx([0.04, 0.04, 0.001])
    assert [cost.compute_s for cost in costs(profile, "h200")] == pytest.approx([0.001, 0.0015, 0.0001])
    assert scaled.calibrated
    assert not measurement().calibrated


def test_rows_that_cross_to_a_gpu_count_where_there_is_one() -> None:
    measured = measurement(H200)
    embedding = measured.layers[0].model_copy(update={"crossing_s": {"1": 0.03, "2": 0.015, "4": 0.0075}})
    crossing = measured.model_copy(update={"layers": (embedding, *measured.layers[1:])})
    made = cluster(cpu={"limit": 4}, h200={"device": "cuda", "limit": 1})
    cost = costs(assemble(crossing, made, catalog=CATALOG), "cpu")[0]
    assert (cost.compute_s, cost.alpha) == (pytest.approx(0.03), pytest.approx(1))
