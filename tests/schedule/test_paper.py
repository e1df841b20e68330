from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterps.errors import InvalidInput
from heterps.plan import Cluster, Layer, Profile
from heterps.schedule.cost import stage_runs
from heterps.schedule.goal import Goal
from heterps.schedule.methods.exact import Exact
from heterps.schedule.objective import ClosedForm
from heterps.schedule.paper import CPU, MODELS, V100, paper_cluster, paper_layers, paper_profile
from heterps.schedule.problem import Problem
from heterps.schedule.roofline import ADAM_MOVES
from heterps.schedule.search import Settings, search

LAYERS = {"ctrdnn": 16, "matchnet": 16, "2emb": 10, "nce": 5}

every_model = pytest.mark.parametrize("model", MODELS)


def layer_named(profile: Profile, name: str) -> Layer:
    return next(layer for layer in profile.layers if layer.name == name)


def usd_per_batch(layer: Layer, name: str) -> float:
    """Dollars for one unit to run the layer alone, communication overlapping computing."""
    cost = layer.costs[name]
    return max(cost.compute_s, cost.sync_s) * paper_cluster().types[name].price_per_hour / 3600


def test_models_have_the_papers_numbers_of_layers() -> None:
    assert {model: len(paper_profile(model).layers) for model in MODELS} == LAYERS


@every_model
def test_layer_names_are_unique_and_costs_derived(model: str) -> None:
    profile = paper_profile(model)
    assert len({layer.name for layer in profile.layers}) == len(profile.layers)
    for layer in profile.layers:
        assert set(layer.costs) == {"cpu", "v100"}
        for cost in layer.costs.values():
            assert cost.source == "derived"
            assert 0 < cost.alpha < 1
            assert 0 < cost.beta < 1 or cost.sync_s == 0


@every_model
def test_only_tables_are_sharded_and_served(model: str) -> None:
    for work, layer in zip(paper_layers(model), paper_profile(model).layers, strict=True):
        assert layer.sharded == (work.rows > 0) == (layer.costs["cpu"].ps_s > 0)


@every_model
def test_profile_survives_saving(model: str, tmp_path: Path) -> None:
    profile = paper_profile(model)
    profile.save(tmp_path / "profile.json")
    assert Profile.load(tmp_path / "profile.json") == profile


def test_cluster_survives_saving(tmp_path: Path) -> None:
    cluster = paper_cluster()
    cluster.save(tmp_path / "cluster.yaml")
    assert Cluster.load(tmp_path / "cluster.yaml") == cluster
    assert cluster.parameter_server == "cpu"
    prices_and_limits = {name: (kind.price_per_hour, kind.limit) for name, kind in cluster.types.items()}
    assert prices_and_limits == {"cpu": (0.04, 480), "v100": (2.42, 32)}


@every_model
def test_costs_are_linear_in_the_batch_apart_from_what_is_done_once(model: str) -> None:
    once, twice = paper_profile(model, batch_size=1000), paper_profile(model, batch_size=2000)
    for work, small, large in zip(paper_layers(model), once.layers, twice.layers, strict=True):
        assert large.output_bytes == 2 * small.output_bytes
        assert large.input_bytes == 2 * small.input_bytes
        assert large.state_bytes == small.state_bytes
        for device in (CPU, V100):
            a, b = small.costs[device.name], large.costs[device.name]
            per_batch_s = device.overhead_s + ADAM_MOVES * work.dense_bytes / device.memory_bytes_per_s
            assert b.compute_s - per_batch_s == pytest.approx(2 * (a.compute_s - per_batch_s), rel=1e-9)
            assert b.ps_s == pytest.approx(2 * a.ps_s)
            if not work.rows:
                assert b.sync_s == a.sync_s


def test_fc_on_v100_by_hand() -> None:
    """429 -> 2048 with bias: 880,640 weights, 1,757,184 FLOPs a sample, far above the memory roof."""
    layer = layer_named(paper_profile("ctrdnn", batch_size=4096), "fc1")
    cost = layer.costs["v100"]
    passes_s = 3 * 4096 * 1_757_184 / (0.7 * 15.7e12)
    update_s = 7 * 4 * 880_640 / 900e9
    reduce_s = 2 * 4 * 880_640 / 12.5e9
    assert layer.state_bytes == 3 * 4 * 880_640
    assert cost.compute_s == pytest.approx(passes_s + update_s + 50e-6)
    assert (1 - cost.alpha) * cost.compute_s == pytest.approx(50e-6 + 0.0005 * passes_s + update_s / 8)
    assert cost.sync_s == pytest.approx(reduce_s + 100e-6)
    assert (1 - cost.beta) * cost.sync_s == pytest.approx(100e-6 + reduce_s / 8)
    assert cost.ps_s == 0


def test_embedding_by_hand() -> None:
    """208 rows of 64 bytes: bound by row access in memory, by the link in exchange."""
    layer = layer_named(paper_profile("ctrdnn", batch_size=4096), "embedding")
    cpu, v100 = layer.costs["cpu"], layer.costs["v100"]
    exchanged_bytes = 4096 * 208 * 2 * (64 + 8)
    assert layer.output_bytes == 4096 * 208 * 64
    assert layer.state_bytes == 204_184_588 * (64 + 4)
    assert cpu.compute_s == pytest.approx(3 * 4096 * 208 * (8 + 2 * 64) / (0.25 * 6 * 21.3e9 / 24) + 20e-6)
    assert cpu.sync_s == pytest.approx(exchanged_bytes / 0.25e9 + 100e-6)
    assert v100.sync_s == pytest.approx(exchanged_bytes / 12.5e9 + exchanged_bytes / 6.3e9 + 100e-6)
    assert cpu.ps_s == v100.ps_s == pytest.approx(exchanged_bytes / 0.25e9)


@every_model
def test_tables_favour_cpu_and_the_widest_fc_favours_v100_per_dollar(model: str) -> None:
    layers = paper_profile(model).layers
    for layer in layers:
        if layer.kind == "embedding":
            assert usd_per_batch(layer, "cpu") < usd_per_batch(layer, "v100")
    widest = max((layer for layer in layers if layer.kind == "fc"), key=lambda layer: layer.state_bytes)
    assert usd_per_batch(widest, "v100") < usd_per_batch(widest, "cpu")


def test_best_plan_for_ctrdnn_mixes_types_and_beats_each_alone() -> None:
    problem = Problem(paper_profile("ctrdnn"), paper_cluster(), Goal(min_throughput=500_000.0))
    objective = ClosedForm(problem)
    found = search(objective, Exact(objective, Settings()))
    assert found.placement is not None
    placement = problem.decode(found.placement)
    assert set(placement) == {"cpu", "v100"}
    assert placement[0] == "cpu"
    assert placement[problem.profile.layers.index(layer_named(problem.profile, "fc2"))] == "v100"
    assert len(stage_runs(placement)) <= 4
    for name in problem.names:
        alone = objective.provision(problem.encode([name] * problem.layers)[0])
        assert alone is not None
        assert found.value < 0.75 * alone.usd_per_sample


@every_model
def test_a_million_samples_a_second_are_within_reach(model: str) -> None:
    problem = Problem(paper_profile(model), paper_cluster(), Goal(samples=1.0, budget_usd=1e30))
    objective = ClosedForm(problem)
    found = search(objective, Exact(objective, Settings()))
    assert np.isfinite(found.value)
    assert 1 / found.value > 1e6


def test_unknown_model_lists_the_models_and_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"'ctrdn'; .* ctrdnn, matchnet, 2emb, nce\. Did you mean 'ctrdnn'\?"):
        paper_profile("ctrdn")


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_needs_samples(batch_size: int) -> None:
    with pytest.raises(InvalidInput, match=f"batch_size is {batch_size}"):
        paper_profile("nce", batch_size=batch_size)
