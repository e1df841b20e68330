"""Which types a problem does not use, and layers that take no time."""

from __future__ import annotations

import random
from typing import Any

import pytest

from heterps.plan import Cluster, Profile
from heterps.schedule.goal import Goal
from heterps.schedule.methods.brute_force import BruteForce
from heterps.schedule.methods.exact import Exact
from heterps.schedule.objective import ClosedForm
from heterps.schedule.problem import Problem
from heterps.schedule.search import Settings, search
from tests.schedule.reference import random_inputs

FREE, BUSY = {"compute_s": 0.0, "sync_s": 0.0}, {"compute_s": 1.0, "sync_s": 0.0}


def problem(layers: list[dict[str, Any]], *types: str) -> Problem:
    kinds = {name: {"device": "cpu", "price_per_hour": 1.0} for name in types}
    made = [{"name": f"layer{i}", "costs": costs} for i, costs in enumerate(layers)]
    profile = Profile.from_dict({"format": "heterps.profile/1", "batch_size": 1, "layers": made})
    return Problem(profile, Cluster.from_dict({"types": kinds}), Goal(min_throughput=1.0), "p.json", "c.yaml")


def test_types_that_are_not_used_are_noted_with_the_name_they_may_stand_for() -> None:
    assert problem([{"cpu": BUSY, "gpuu": BUSY}], "cpu", "gpu").unused_types() == [
        "gpuu: in p.json but not in c.yaml; no layer can be placed there. Did you mean 'gpu'?",
        "gpu: in c.yaml but not in p.json; no layer can be placed there. Did you mean 'gpuu'?",
    ]


def test_a_name_that_is_used_is_not_what_another_one_stands_for() -> None:
    """The profile was measured on two GPUs of similar names, of which the cluster rents one."""
    notes = problem([{"cpu": BUSY, "a100": BUSY, "a10": BUSY}], "cpu", "a100").unused_types()
    assert notes == ["a10: in p.json but not in c.yaml; no layer can be placed there."]
    assert problem([{"cpu": BUSY}], "cpu").unused_types() == []


@pytest.mark.parametrize("seed", range(60))
def test_a_type_may_run_only_layers_that_take_no_time(seed: int) -> None:
    rng = random.Random(seed)
    profile, cluster = random_inputs(rng, layers=rng.randint(2, 5), types=rng.choice([2, 3]))
    *_, free = cluster.types
    data = profile.to_dict()
    for layer in data["layers"][1:]:
        if free in layer["costs"]:
            layer["costs"][free] |= FREE
    data["layers"][0]["costs"].pop(free, None)
    if not data["layers"][0]["costs"]:
        pytest.skip("no type is left for the first layer")
    goal = Goal(min_throughput=rng.choice([0.0, 10.0, 1000.0]))
    objective = ClosedForm(Problem(Profile.from_dict(data), cluster, goal))
    expected = search(objective, BruteForce(objective, Settings())).value
    assert search(objective, Exact(objective, Settings())).value == pytest.approx(expected, rel=1e-6)
