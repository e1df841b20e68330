"""Measurements kept from run to run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heterps.models import Bags, Batch, Chain, zoo
from heterps.profile.cache import cache_directory, load_measurement, measurement_key, save_measurement
from heterps.profile.measurement import Measurement
from heterps.runtime.settings import Settings
from heterps.runtime.tables import bind_tables
from tests.profile.measurements import H200, hardware, measurement

ARGS: dict[str, Any] = {"slots": 3, "dense": 2, "dim": 4, "hidden": [8, 8]}
SETTINGS = Settings(batch_size=64, micro_batches=2)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETERPS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def key(chain: Chain | None = None, batch: Batch | None = None, settings: Settings = SETTINGS, **args: Any) -> str:
    given = {**ARGS, **args}
    chain = chain if chain is not None else zoo.build("ctrdnn", **given)
    return measurement_key(chain, batch or zoo.example("ctrdnn", 4, **given), settings, hardware())


def test_a_chain_built_twice_has_one_key() -> None:
    assert key() == key()


def test_training_and_binding_change_no_key() -> None:
    chain = zoo.build("ctrdnn", **ARGS)
    before = key(chain)
    bind_tables(chain)
    with torch.no_grad():
        for parameter in chain.parameters():
            parameter.add_(1)
    assert key(chain) == before


def test_other_samples_of_the_same_shape_have_one_key() -> None:
    batches = [zoo.example("ctrdnn", size, seed=seed, **ARGS) for size, seed in ((4, 0), (4, 1), (7, 2))]
    assert len({key(batch=batch) for batch in batches}) == 1


def without_gradients() -> Chain:
    chain = zoo.build("ctrdnn", **ARGS)
    chain.layers[1].requires_grad_(False)
    return chain


def of_other_modules() -> Chain:
    chain = zoo.build("ctrdnn", **ARGS)
    chain.layers[1].module = nn.Sequential(chain.layers[1].module, nn.Dropout())
    return chain


OTHERS: dict[str, Callable[[], str]] = {
    "batch size": lambda: key(settings=replace(SETTINGS, batch_size=128)),
    "micro-batches": lambda: key(settings=replace(SETTINGS, micro_batches=4)),
    "precision": lambda: key(settings=replace(SETTINGS, precision="bf16")),
    "optimizer": lambda: key(settings=replace(SETTINGS, optimizer="sgd")),
    "own optimizer": lambda: key(settings=replace(SETTINGS, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))),
    "width": lambda: key(hidden=[8, 16]),
    "depth": lambda: key(hidden=[8, 8, 8]),
    "dim": lambda: key(dim=8),
    "optimizer of rows": lambda: key(optimizer="adam"),
    "slots": lambda: key(slots=4),
    "dense": lambda: key(dense=3),
    "data": lambda: key(batch={**zoo.example("ctrdnn", 4, **ARGS), "more": torch.zeros(4)}),
    "type of data": lambda: key(batch={**zoo.example("ctrdnn", 4, **ARGS), "label": torch.zeros(4).double()}),
    "bags": lambda: key(batch={**zoo.example("ctrdnn", 4, **ARGS), "ids": Bags(torch.arange(12), torch.arange(13), 3)}),
    "frozen": lambda: key(without_gradients()),
    "modules": lambda: key(of_other_modules()),
    "hardware": lambda: measurement_key(
        zoo.build("ctrdnn", **ARGS), zoo.example("ctrdnn", 4, **ARGS), SETTINGS, hardware(H200)
    ),
}


def test_whatever_changes_the_cost_changes_the_key() -> None:
    keys = {"same": key()} | {what: make() for what, make in OTHERS.items()}
    same = [(a, b) for a in keys for b in keys if a < b and keys[a] == keys[b]]
    assert not same


def test_what_is_saved_is_loaded() -> None:
    for measured in (measurement(key="a"), measurement(H200, key="b")):
        save_measurement(measured)
        assert load_measurement(measured.key) == measured
    assert load_measurement("c") is None


def test_a_later_measurement_replaces_an_earlier_one() -> None:
    save_measurement(measurement(key="a"))
    path = save_measurement(measurement(key="a", data_s=1.0))
    loaded = load_measurement("a")
    assert loaded is not None
    assert loaded.data_s == 1.0
    assert [file.name for file in path.parent.iterdir()] == [path.name], "nothing else is left there"


def test_a_torn_file_counts_as_none() -> None:
    path = save_measurement(measurement(key="a"))
    whole = path.read_bytes()
    for content in (b"", whole[:100], whole[:-3], b"\xff\xfe", b"{}", b"[]", whole.replace(b"cpu_s", b"cpu_z", 1)):
        path.write_bytes(content)
        assert load_measurement("a") is None, content[:20]
    path.write_bytes(whole)
    assert load_measurement("a") == measurement(key="a")


def test_two_writers_do_not_tear_the_file() -> None:
    versions = [measurement(key="a", data_s=float(number), model="m" * 20_000 * (number + 1)) for number in range(2)]
    save_measurement(versions[0])
    failures: list[BaseException] = []

    def write(version: Measurement) -> None:
        try:
            for _ in range(20):
                save_measurement(version)
        except BaseException as error:
            failures.append(error)

    writers = [threading.Thread(target=write, args=(version,)) for version in versions]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert load_measurement("a") in versions
    for writer in writers:
        writer.join()
    assert not failures
    assert load_measurement("a") in versions


def test_where_measurements_are_kept(own_cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert save_measurement(measurement(key="a")).is_relative_to(own_cache)
    monkeypatch.delenv("HETERPS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_directory() == tmp_path / "xdg" / "heterps"
    assert load_measurement("a") is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_directory() == tmp_path / "home" / ".cache" / "heterps"
