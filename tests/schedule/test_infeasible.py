"""What is said of a goal out of reach: the highest throughput, what stops it, with figures, and the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from heterps.errors import Infeasible
from heterps.plan import Cluster, Profile
from heterps.schedule.goal import Goal
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem

CPU = {"device": "cpu", "price_per_hour": 1.0}
GPU = {"device": "cuda", "price_per_hour": 10.0}
SECOND = {"compute_s": 1.0, "sync_s": 0.0}


def layer(name: str, *, types: str = "cpu", **rest: Any) -> dict[str, Any]:
    """A layer of one second on one unit of each of the types."""
    costs = {"ps_s": rest.pop("ps_s", 0.0), "alpha": rest.pop("alpha", 1.0)}
    return {"name": name, "costs": dict.fromkeys(types.split(), SECOND | costs), **rest}


def message(layers: list[dict[str, Any]], types: dict[str, Any], *, method: str = "auto", **goal: Any) -> str:
    """What is said of a goal that no plan meets; the first type serves tables."""
    profile = Profile.from_dict({"format": "heterps.profile/1", "batch_size": 1, "layers": layers})
    cluster = Cluster.from_dict({"types": types, "parameter_server": next(iter(types))})
    with pytest.raises(Infeasible) as caught:
        make_plan(Problem(profile, cluster, Goal(**({"min_throughput": 1e6} | goal))), method=method)
    return str(caught.value)


def test_units_for_memory_and_the_server_count_towards_a_limit() -> None:
    """100 cores hold the table and would do 100/s, but the 5 others serve only 50/s."""
    table = layer("emb", ps_s=0.1, state_bytes=1e12, sharded=True)
    said = message([table], {"cpu": CPU | {"limit": 105, "memory_gb": 10}})
    assert "highest reachable throughput is 50.0 samples/s" in said
    needs = "106: 100 for the state of layer 'emb', 6 for the parameter server"
    assert f"the limit of 105 units of cpu (any more throughput needs {needs})" in said
    assert said.endswith("Lower the goal or raise that limit.")


def test_a_limit_that_one_stage_exceeds() -> None:
    said = message([layer("a")], {"cpu": CPU | {"limit": 12}})
    assert "highest reachable throughput is 12.0 samples/s" in said
    assert "the limit of 12 units of cpu (any more throughput needs 13)" in said


def test_a_serial_fraction_cannot_be_raised() -> None:
    said = message([layer("a", alpha=0.0)], {"cpu": CPU})
    assert "the serial fraction (1 - alpha) of layer 'a' on cpu allows no more than 1/s" in said
    assert said.endswith("Lower the goal.")


def test_a_pipeline_that_drains_is_named_and_counted() -> None:
    """1/s in the steady state; two stages and one micro-batch keep half of it."""
    layers = [layer("a", alpha=0.0), layer("b", types="gpu")]
    said = message(layers, {"cpu": CPU, "gpu": GPU}, mode="sync", micro_batches=1)
    assert "layer 'a' on cpu allows no more than 0.5/s" in said
    assert "mode sync, where 2 stages with micro_batches 1 keep 50.0% of the throughput" in said
    assert said.endswith("Lower the goal or raise --micro-batches.")


def test_money_stops_more_throughput() -> None:
    said = message([layer("a")], {"cpu": CPU}, max_usd_per_hour=3.5)
    assert "--max-usd-per-hour 3.5 (any more throughput costs $4 an hour)" in said
    assert said.endswith("Lower the goal or raise --max-usd-per-hour.")


def test_money_for_no_plan_at_all() -> None:
    """The cheapest an hour is a core, a GPU and a core that serves."""
    said = message([layer("a", ps_s=0.1), layer("b", types="gpu")], {"cpu": CPU, "gpu": GPU}, max_usd_per_hour=11.5)
    assert "--max-usd-per-hour is 11.5, and the plan that costs least an hour takes $12.00" in said
    assert "limit" not in said
    assert "memory_gb" not in said


def test_a_table_that_fits_nowhere() -> None:
    types = {"cpu": CPU | {"limit": 99, "memory_gb": 10}, "gpu": GPU | {"limit": 10, "memory_gb": 80}}
    said = message([layer("emb", types="cpu gpu", state_bytes=1e12, sharded=True), layer("fc")], types)
    held = "99 units of cpu hold 990 GB, 10 units of gpu hold 800 GB"
    assert f"layer 'emb' has 1,000 GB of state shared by its units; {held}" in said
    assert said.endswith("Raise limit or memory_gb, or add a type with more memory.")


def test_a_layer_that_fits_nowhere() -> None:
    said = message([layer("fc", state_bytes=2e10)], {"cpu": CPU | {"memory_gb": 10}})
    assert "layer 'fc' has 20 GB of state on every unit; a unit of cpu holds 10 GB" in said


def test_a_limit_without_room_for_the_server() -> None:
    said = message([layer("a", ps_s=0.1)], {"cpu": CPU | {"limit": 1}})
    assert "2 units of cpu would do, the limit is 1. Raise that limit." in said


def test_limits_of_which_either_could_be_raised() -> None:
    """Two layers that need two units each, on three cores or three GPUs, of which one core or two GPUs are left."""
    tables = [layer(name, types="cpu gpu", state_bytes=2e9, sharded=True) for name in "ab"]
    types = {"cpu": CPU | {"limit": 1, "memory_gb": 1}, "gpu": GPU | {"limit": 3, "memory_gb": 1}}
    said = message(tables, types)
    assert "2 units of cpu would do, the limit is 1; 4 units of gpu would do, the limit is 3" in said
    assert said.endswith("Raise one of these limits.")


def test_layers_that_fit_alone_but_not_together() -> None:
    said = message([layer(name, state_bytes=6e9) for name in "ab"], {"cpu": CPU | {"memory_gb": 10}})
    assert "no room for all layers, with 12 GB of state" in said


def test_one_type_alone() -> None:
    layers = [layer("a", types="cpu gpu"), layer("b", types="cpu")]
    types = {"cpu": CPU | {"limit": 4}, "gpu": GPU}
    said = message(layers, types, min_throughput=3.0, method="only:cpu")
    assert "though there is one: use method exact. The highest throughput that cpu alone reaches is" in said
    assert "the limit of 4 units of cpu (any more throughput needs 5)" in said
    said = message(layers, types, min_throughput=3.0, method="only:gpu")
    assert "gpu alone cannot run layer 'b'" in said
