"""The cost model against numbers worked out by hand from the design's formulas."""

from __future__ import annotations

from typing import Any

import pytest

from heterps.plan import Cluster, Profile
from heterps.schedule.cost import evaluate, stage_runs, stage_time, stage_times, violations
from heterps.schedule.goal import Goal

STEADY = Goal(min_throughput=1)

# Batches of 10 samples. Layer 0 runs on cpu only, layer 2 on gpu only, layer 1 on both.
PROFILE = Profile.from_dict({
    "format": "heterps.profile/1", "batch_size": 10,
    "layers": [
        {"name": "emb", "output_bytes": 5e6, "state_bytes": 6e9, "sharded": True,
         "costs": {"cpu": {"compute_s": 0.4, "sync_s": 0.2, "alpha": 0.75, "beta": 0.5, "ps_s": 0.1}}},
        {"name": "fc1", "output_bytes": 2.5e6, "state_bytes": 1e9,
         "costs": {"cpu": {"compute_s": 0.6, "sync_s": 0.1, "alpha": 0.5},
                   "gpu": {"compute_s": 0.02, "sync_s": 0.01, "beta": 0.5, "ps_s": 0.02}}},
        {"name": "fc2", "output_bytes": 1e12, "state_bytes": 3e9,
         "costs": {"gpu": {"compute_s": 0.03, "sync_s": 0.02, "alpha": 0.9}}},
    ],
})  # fmt: skip

CPU = {"device": "cpu", "price_per_hour": 0.5, "limit": 8, "bandwidth_gbps": 1.0, "memory_gb": 2.0}
GPU = {"device": "cuda", "price_per_hour": 3.0, "limit": 2, "bandwidth_gbps": 10.0, "memory_gb": 4.0}


def cluster(*, parameter_server: str | None = None, cpu: dict[str, Any] | None = None) -> Cluster:
    data: dict[str, Any] = {"types": {"cpu": CPU | (cpu or {}), "gpu": GPU}}
    return Cluster.from_dict(data | ({"parameter_server": parameter_server} if parameter_server else {}))


def one_layer(**cost: float) -> Profile:
    layer = {"name": "only", "output_bytes": 1e12, "costs": {"cpu": cost}}
    return Profile.from_dict({"format": "heterps.profile/1", "batch_size": 10, "layers": [layer]})


def test_stages_are_maximal_runs():
    assert stage_runs(["cpu", "cpu", "gpu", "cpu"]) == [(0, 1, "cpu"), (2, 2, "gpu"), (3, 3, "cpu")]


def test_compute_bound_stage():
    """S = 0.25*0.4/10 = 0.01 and P = 0.75*0.4/10 = 0.03, so 2 units take 0.01 + 0.015 = 0.025 s a sample;
    communication takes 0.5*0.2/10 + 0.5*0.2/10/2 = 0.015 s. The output of the last layer crosses no cut.
    """
    profile = one_layer(compute_s=0.4, sync_s=0.2, alpha=0.75, beta=0.5)
    plan = evaluate(profile, cluster(), ["cpu"], [2], 0, goal=STEADY)
    (stage,) = plan.stages
    assert (stage.compute_s, stage.communication_s) == pytest.approx((0.025, 0.015))
    assert stage.seconds == pytest.approx(0.025)
    assert (stage.binds, stage.idle, plan.slowest, plan.server) == ("compute", pytest.approx(0), 0, None)
    assert plan.throughput == pytest.approx(40)
    assert plan.usd_per_hour == pytest.approx(1.0)
    assert plan.usd_per_sample == pytest.approx(1 / 3600 / 40)


def test_communication_bound_stage():
    """DS = 0.2*0.5/10 = 0.01 and DP = 0.8*0.5/10 = 0.04: with 4 units 0.02 s, against 0.04/4 = 0.01 s of computing."""
    profile = one_layer(compute_s=0.4, sync_s=0.5, alpha=1.0, beta=0.8)
    plan = evaluate(profile, cluster(), ["cpu"], [4], 0, goal=STEADY)
    assert (plan.stages[0].compute_s, plan.stages[0].communication_s) == pytest.approx((0.01, 0.02))
    assert plan.stages[0].binds == "communication"
    assert plan.throughput == pytest.approx(50)
    assert plan.usd_per_sample == pytest.approx(2 / 3600 / 50)


def test_fractions_default_to_fully_parallel():
    """S = DS = 0, so twice the units are twice as fast: 0.4/10/8 = 0.005 s."""
    profile = one_layer(compute_s=0.4, sync_s=0.1)
    assert evaluate(profile, cluster(), ["cpu"], [8], 0, goal=STEADY).throughput == pytest.approx(200)
    assert evaluate(profile, cluster(), ["cpu"], [4], 0, goal=STEADY).throughput == pytest.approx(100)


def test_one_cut_is_paid_on_both_sides():
    """The cut after layer 0 moves 2*5e6 bytes = 8e7 bits: 0.08 s at 1 Gbps on the cpu side, 0.008 s at 10 on the gpu's.

    cpu, 2 units: compute 0.01 + 0.03/2 = 0.025; communication 0.01 + (0.1 + 0.08)/10/2 = 0.019.
    gpu, 1 unit: compute 0.1*0.03/10 + (0.02 + 0.9*0.03)/10 = 0.005;
                 communication 0.5*0.01/10 + (0.5*0.01 + 0.02 + 0.008)/10 = 0.0038.
    """
    plan = evaluate(PROFILE, cluster(), ["cpu", "gpu", "gpu"], [2, 1], 0, goal=STEADY)
    cpu, gpu = plan.stages
    assert (cpu.first, cpu.last, cpu.type, cpu.units) == (0, 0, "cpu", 2)
    assert (gpu.first, gpu.last, gpu.type, gpu.units) == (1, 2, "gpu", 1)
    assert (cpu.compute_s, cpu.communication_s) == pytest.approx((0.025, 0.019))
    assert (gpu.compute_s, gpu.communication_s) == pytest.approx((0.005, 0.0038))
    assert plan.slowest == 0
    assert (cpu.idle, gpu.idle) == pytest.approx((0, 1 - 0.005 / 0.025))
    assert plan.throughput == pytest.approx(40)
    assert (cpu.usd_per_hour, gpu.usd_per_hour, plan.usd_per_hour) == pytest.approx((1, 3, 4))


def test_the_cut_moves_with_the_placement():
    """Layers 0 and 1 on cpu: only the cut after layer 1 is paid: 2*2.5e6*8 bits, 0.04 s on cpu and 0.004 s on gpu.

    cpu, 4 units: compute (0.1 + 0.3)/10 + (0.3 + 0.3)/10/4 = 0.055; communication 0.1/10 + (0.1 + 0.1 + 0.04)/10/4.
    """
    plan = evaluate(PROFILE, cluster(), ["cpu", "cpu", "gpu"], [4, 1], 0, goal=STEADY)
    cpu, gpu = plan.stages
    assert (cpu.compute_s, cpu.communication_s) == pytest.approx((0.055, 0.016))
    assert (gpu.compute_s, gpu.communication_s) == pytest.approx((0.003, 0.0024))
    assert plan.throughput == pytest.approx(1 / 0.055)


def test_a_stage_between_two_cuts_pays_for_both():
    """Layer 1 of three on gpu: 0.008 s for the cut before it and 0.004 s for the one behind it."""
    both_sides = PROFILE.to_dict()
    both_sides["layers"][2]["costs"]["cpu"] = {"compute_s": 0.1, "sync_s": 0.0}
    profile = Profile.from_dict(both_sides)
    stage = stage_time(profile, cluster(), 1, 1, "gpu")
    assert stage.sync_serial_s == pytest.approx(0.005 / 10)
    assert stage.sync_parallel_s == pytest.approx((0.005 + 0.008 + 0.004) / 10)
    plan = evaluate(profile, cluster(), ["cpu", "gpu", "cpu"], [3, 1, 2], 0, goal=STEADY)
    assert plan.stages[1].communication_s == pytest.approx(0.0005 + 0.0017)
    assert plan.stages[1].binds == "communication"
    # The last stage pays for the cut before it at 1 Gbps, 0.04 s: (0 + 0.04)/10/2; it computes 0.1/10/2.
    assert (plan.stages[2].compute_s, plan.stages[2].communication_s) == pytest.approx((0.005, 0.002))
    # 0.01 + 0.03/3 = 0.02 of the first stage binds.
    assert plan.throughput == pytest.approx(50)
    assert plan.usd_per_hour == pytest.approx(3 * 0.5 + 3 + 2 * 0.5)


def test_a_link_without_bandwidth_is_free():
    free = cluster(cpu={"bandwidth_gbps": None})
    plan = evaluate(PROFILE, free, ["cpu", "gpu", "gpu"], [2, 1], 0, goal=STEADY)
    assert plan.stages[0].communication_s == pytest.approx(0.01 + 0.01 / 2)


def test_server_bound():
    """p = (0.1 + 0.02)/10 = 0.012 unit-seconds, each layer at its placed type: one unit gives 1/0.012 = 83.3 a second.

    Eight cpus take 0.01 + 0.03/8 = 0.01375 s, 72.7 a second; with 10 Gbps of link they still do.
    """
    cpus = {"limit": None, "bandwidth_gbps": 10.0}
    offer = cluster(parameter_server="cpu", cpu=cpus)
    fast = evaluate(PROFILE, offer, ["cpu", "gpu", "gpu"], [8, 1], 1, goal=STEADY)
    assert fast.server is not None
    assert (fast.server.type, fast.server.units, fast.server.seconds) == ("cpu", 1, pytest.approx(0.012))
    assert fast.slowest == 0
    assert fast.throughput == pytest.approx(1 / 0.01375)
    assert fast.server.idle == pytest.approx(1 - 0.012 / 0.01375)
    assert fast.usd_per_hour == pytest.approx(8 * 0.5 + 3 + 0.5)
    # With 24 cpus, 0.01 + 0.03/24 = 0.01125 s, the server is the slowest: 0.012 s.
    bound = evaluate(PROFILE, offer, ["cpu", "gpu", "gpu"], [24, 1], 1, goal=STEADY)
    assert bound.slowest is None
    assert bound.throughput == pytest.approx(1 / 0.012)
    assert bound.server is not None
    assert bound.server.idle == pytest.approx(0)
    two = evaluate(PROFILE, offer, ["cpu", "gpu", "gpu"], [24, 1], 2, goal=STEADY)
    assert two.throughput == pytest.approx(1 / 0.01125)
    # On cpu, layer 1 causes no work for the server: p = 0.1/10.
    other = evaluate(PROFILE, offer, ["cpu", "cpu", "gpu"], [1, 1], 1, goal=STEADY)
    assert other.server is not None
    assert other.server.seconds == pytest.approx(0.01)


def test_server_work_without_units_goes_nowhere():
    plan = evaluate(PROFILE, cluster(parameter_server="cpu"), ["cpu", "gpu", "gpu"], [2, 1], 0, goal=STEADY)
    assert plan.throughput == 0


def test_server_work_is_ignored_without_a_server():
    plan = evaluate(PROFILE, cluster(), ["cpu", "gpu", "gpu"], [24, 1], 0, goal=STEADY)
    assert plan.throughput == pytest.approx(1 / 0.01125)
    assert plan.server is None


def test_a_server_without_work_needs_no_units():
    plan = evaluate(one_layer(compute_s=0.4, sync_s=0), cluster(parameter_server="gpu"), ["cpu"], [4], 0, goal=STEADY)
    assert plan.throughput == pytest.approx(100)
    assert plan.usd_per_hour == pytest.approx(2)


@pytest.mark.parametrize(("micro_batches", "fill"), [(1, 1 / 2), (4, 4 / 5), (99, 0.99)])
def test_a_synchronous_pipeline_drains(micro_batches: int, fill: float):
    """Two stages keep M / (M + 1) of the throughput; what an hour costs stays the same."""
    goal = Goal(min_throughput=1, mode="sync", micro_batches=micro_batches)
    plan = evaluate(PROFILE, cluster(), ["cpu", "gpu", "gpu"], [2, 1], 0, goal=goal)
    assert plan.fill == pytest.approx(fill)
    assert plan.throughput == pytest.approx(40 * fill)
    assert plan.usd_per_sample == pytest.approx(4 / 3600 / (40 * fill))


def test_one_synchronous_stage_stays_full():
    goal = Goal(min_throughput=1, mode="sync", micro_batches=3)
    plan = evaluate(one_layer(compute_s=0.4, sync_s=0), cluster(), ["cpu"], [4], 0, goal=goal)
    assert (plan.fill, plan.throughput) == pytest.approx((1, 100))


def test_units_must_match_the_stages():
    with pytest.raises(ValueError, match="zip"):
        evaluate(PROFILE, cluster(), ["cpu", "gpu", "gpu"], [2], 0, goal=STEADY)


def test_a_type_that_cannot_run_a_layer():
    with pytest.raises(KeyError):
        stage_times(PROFILE, cluster(), ["gpu", "gpu", "gpu"])


def test_limits_count_stages_and_server_together():
    stages = stage_times(PROFILE, cluster(parameter_server="cpu"), ["cpu", "gpu", "gpu"])
    offer = cluster(parameter_server="cpu")
    assert violations(offer, stages, [6, 2], 2) == []
    assert violations(offer, stages, [6, 2], 3) == ["9 units of cpu, the limit is 8"]
    assert violations(offer, stages, [6, 3], 3) == ["9 units of cpu, the limit is 8", "3 units of gpu, the limit is 2"]
    unlimited = cluster(parameter_server="cpu", cpu={"limit": None})
    assert violations(unlimited, stages, [600, 2], 3) == []


def test_sharded_state_is_divided_and_replicated_is_not():
    """Layer 0 shards 6 GB over cpus of 2 GB: 3 fit exactly, 2 do not. Layers 1 and 2 put 4 GB on every gpu."""
    stages = stage_times(PROFILE, cluster(), ["cpu", "gpu", "gpu"])
    assert stages[0].bytes_per_unit(3) == pytest.approx(2e9)
    assert stages[1].bytes_per_unit(2) == pytest.approx(4e9)
    assert violations(cluster(), stages, [3, 2], 0) == []
    assert violations(cluster(), stages, [2, 1], 0) == ["layers 0..0 need 3 GB on each of 2 cpu, which has 2 GB"]
    # Layers 0 and 1 together: 1 GB replicated leaves room for 1 GB of the shards, so 6 units.
    together = stage_times(PROFILE, cluster(), ["cpu", "cpu", "gpu"])
    assert violations(cluster(), together, [6, 1], 0) == []
    (message,) = violations(cluster(), together, [5, 1], 0)
    assert message == "layers 0..1 need 2.2 GB on each of 5 cpu, which has 2 GB"
    assert violations(cluster(cpu={"memory_gb": None}), together, [1, 1], 0) == []
