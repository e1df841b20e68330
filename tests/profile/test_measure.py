"""A chain measured as a whole."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import heterps
import heterps.profile.measure as measuring
from heterps.catalog import Catalog
from heterps.catalog.parts import published
from heterps.data import Synthetic
from heterps.errors import InvalidInput
from heterps.models import Bags, Chain, Layer, zoo
from heterps.profile.assemble import assemble
from heterps.profile.hardware import here
from heterps.profile.links import Links
from heterps.profile.measure import measure, share_of_whole, unit_counts
from heterps.profile.measurement import Measurement
from heterps.profile.probe import Probed
from heterps.runtime.settings import Settings
from heterps.runtime.tables import bind_tables
from tests.profile.measurements import cluster
from tests.profile.sleepers import QUICK, Sleeper, even_batches, sleepy
from tests.runtime import chains

UNITS = {str(count) for count in unit_counts(here().cores)}


@pytest.fixture
def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are taken as known: measuring them takes seconds, and has tests of its own."""
    links = Links(process_gbps=10.0, round_trip_s=1e-4, all_reduce_bytes_per_s=1e9)
    monkeypatch.setattr(measuring, "measure_links", lambda: links)


def quick(chain: Chain, data: Any, *, served: bool = False, **settings: Any) -> Measurement:
    return measure(chain, data, Settings(**settings), served=served, efforts=QUICK)


@pytest.mark.parametrize(
    ("cores", "units"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_units_are_doubled_up_to_all_cores(cores: int, units: list[int]) -> None:
    assert unit_counts(cores) == units


def test_a_whole_measurement(tmp_path: Path) -> None:
    said: list[tuple[str, float]] = []
    measured = measure(
        chains.small(), even_batches(3), Settings(micro_batches=2), key="abc", efforts=QUICK,
        on_progress=lambda what, share: said.append((what, share)),
    )  # fmt: skip
    assert (measured.key, measured.batch_size, measured.micro_batches) == ("abc", 16, 2)
    assert [layer.name for layer in measured.layers] == ["rows", "fc1", "fc2", "logit", "loss"]
    for layer in measured.layers:
        assert layer.cpu_s.keys() == UNITS
        assert all(seconds > 0 for seconds in layer.cpu_s.values())
        assert layer.overhead_s >= 0
    assert [layer.served is not None for layer in measured.layers] == [True, False, False, False, False]
    assert [layer.sharded for layer in measured.layers] == [True, False, False, False, False]
    assert measured.hardware.core is not None
    assert [share for _, share in said] == sorted(share for _, share in said)
    assert all(what and 0 <= share < 1 for what, share in said)
    measured.save(tmp_path / "measurement.json")
    assert Measurement.load(tmp_path / "measurement.json") == measured
    profile = assemble(measured, cluster(cpu={"limit": 1}), catalog=Catalog(published()))
    assert heterps.plan(profile, cluster(cpu={"limit": 1}), min_throughput=1.0).placement == ("cpu",) * 5


@pytest.mark.usefixtures("no_links")
class TestWithoutLinks:
    @pytest.mark.usefixtures("nap_time")
    def test_a_sleeping_layer_is_found_and_its_calls_are_its_overhead(self) -> None:
        measured = quick(sleepy(Sleeper(forward_s=0.01)), even_batches(2), micro_batches=4)
        times = {layer.name: layer for layer in measured.layers}
        assert max(times, key=lambda name: times[name].cpu_s["1"]) == "nap0"
        assert times["nap0"].cpu_s["1"] >= 0.03
        assert all(sum(layer.cpu_s[units] for layer in measured.layers) >= 0.04 for units in UNITS)
        assert 0.006 < times["nap0"].overhead_s < 0.03, "of one of four micro-batches"

    def test_on_all_cores_layers_take_what_a_whole_step_takes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(measuring, "probe", lambda *_: Probed(7.0, (6.0,)))
        measured = quick(chains.small(), even_batches(2))
        most = max(UNITS, key=int)
        assert sum(layer.cpu_s[most] for layer in measured.layers) == pytest.approx(7.0)

    def test_the_chain_is_left_as_it_was(self) -> None:
        chain = Chain(
            chains.embedding("rows"),
            Layer("norm", nn.BatchNorm1d(chains.SLOTS), reads="rows", writes="n"),
            chains.fc("logit", "n", chains.SLOTS * chains.DIM, 1, relu=False),
            chains.loss(),
        )
        before, threads = copy.deepcopy(chain.state_dict()), torch.get_num_threads()
        batches = even_batches(2)
        given_batches = copy.deepcopy(batches)
        quick(chain, batches)
        assert all(torch.equal(value, before[name]) for name, value in chain.state_dict().items())
        assert all(parameter.grad is None for parameter in chain.parameters())
        assert chain.tables == {}
        assert chain.training
        assert torch.get_num_threads() == threads
        for batch, given_batch in zip(batches, given_batches, strict=True):
            assert torch.equal(batch["ids"], given_batch["ids"])  # type: ignore[arg-type]

    def test_a_trained_chain_keeps_its_table(self) -> None:
        chain, batches = chains.small(), even_batches(3)
        heterps.train(chain, batches, steps=3)
        table = chain.tables["rows"]
        ids = torch.arange(chains.IDS)
        rows, state, stats = *table.peek(ids), table.stats()
        weights = copy.deepcopy(chain.state_dict())
        measured = quick(chain, even_batches(2, size=8))
        assert measured.batch_size == 8
        assert chain.tables["rows"] is table
        assert table.stats() == stats
        assert all(np.array_equal(*pair) for pair in zip(table.peek(ids), (rows, state), strict=True))
        assert all(torch.equal(value, weights[name]) for name, value in chain.state_dict().items())

    def test_data_of_less_than_a_batch(self) -> None:
        chain = zoo.build("ctrdnn", slots=3, dense=2, dim=4, hidden=[8])
        measured = quick(chain, Synthetic(rows=10, ids=50, slots=3, dense=2), batch_size=64)
        assert measured.batch_size == 10
        assert measured.layers[0].input_bytes == 10 * 3 * 8
        assert measured.data_s > 0

    def test_data_of_a_batch_and_a_rest(self) -> None:
        chain = zoo.build("ctrdnn", slots=3, dense=2, dim=4, hidden=[8])
        measured = quick(chain, Synthetic(rows=40, ids=50, slots=3, dense=2), batch_size=32)
        assert measured.batch_size == 32
        assert measured.layers[0].input_bytes == 32 * 3 * 8

    def test_one_sample(self) -> None:
        measured = quick(chains.small(), even_batches(1, size=1), micro_batches=4)
        assert measured.batch_size == 1
        assert all(layer.overhead_s == 0 for layer in measured.layers), "nothing to tell it from"

    def test_reading_a_list_takes_no_time(self) -> None:
        assert quick(chains.small(), chains.random_batches(4)).data_s == 0

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ([], "no rows"),
            (iter(even_batches(9)), "only once"),
            (3, "source or an iterable"),
            ([{"label": torch.zeros(4)}], "no 'ids'"),
        ],
    )
    def test_bad_data_is_refused(self, data: Any, message: str) -> None:
        with pytest.raises(InvalidInput, match=message):
            quick(chains.small(), data)

    def test_state_of_weights_optimizer_and_rows(self) -> None:
        chain = Chain(
            chains.embedding("rows"),
            chains.embedding("other", reads="more", table="rows"),
            chains.fc("logit", ["rows", "other"], 5 * chains.DIM, 1, relu=False),
            chains.loss(),
        )
        adam, sgd = (
            {layer.name: layer.state_bytes for layer in quick(chain, even_batches(2), optimizer=name).layers}
            for name in ("adam", "sgd")
        )
        weights = (5 * chains.DIM + 1) * 4
        assert sgd["logit"] == weights
        assert 3 * weights <= adam["logit"] <= 3 * weights + 16
        assert adam["rows"] == adam["other"] > 0
        bind_tables(chain)
        ids = [batch[name] for batch in even_batches(2) for name in ("ids", "more")]
        chain.tables["rows"].pull(torch.cat([some.reshape(-1) for some in ids]))  # type: ignore[union-attr]
        assert 2 * adam["rows"] == pytest.approx(chain.tables["rows"].stats().bytes, rel=0.5), "a table is there once"

    def test_an_embedding_whose_bags_are_empty_is_sharded_all_the_same(self) -> None:
        chain = Chain(
            chains.embedding("bag", reads="tags", pooling="sum"),
            chains.fc("logit", ["bag", "dense"], 2 * chains.DIM + chains.DENSE, 1, relu=False),
            chains.loss(),
        )
        none = Bags(torch.zeros(0, dtype=torch.int64), torch.zeros(33, dtype=torch.int64), 2)
        measured = quick(chain, [{**even_batches(1)[0], "tags": none}])
        assert measured.layers[0].sharded

    def test_activations_of_bf16_are_half_as_large(self) -> None:
        full, half = (quick(chains.small(), even_batches(2), precision=name) for name in ("float32", "bf16"))
        assert (half.precision, full.precision) == ("bf16", "float32")
        assert half.layers[1].output_bytes * 2 == full.layers[1].output_bytes


@given(
    whole=st.floats(1e-6, 10),
    dense=st.floats(0, 10),
    kernels=st.lists(st.none() | st.floats(0, 10, allow_subnormal=False), min_size=1, max_size=8),
)
def test_shares_add_up_to_the_whole_and_keep_their_order(
    whole: float, dense: float, kernels: list[float | None]
) -> None:
    assume(sum(seconds for seconds in kernels if seconds is not None) > 1e-9)
    shares = share_of_whole(whole, dense, kernels)
    assert sum(shares) == pytest.approx(whole)
    assert all(share >= 0 for share in shares)
    pairs = sorted((seconds, share) for seconds, share in zip(kernels, shares, strict=True) if seconds is not None)
    assert [share for _, share in pairs] == sorted(share for _, share in pairs)
    rows = [share for seconds, share in zip(kernels, shares, strict=True) if seconds is None]
    assert len(set(rows)) <= 1
    assert not rows or sum(rows) >= whole / 20 * (1 - 1e-9), "rows have a twentieth at least"


def test_shares_by_hand() -> None:
    assert share_of_whole(1.0, 0.5, [None, 0.2, 0.3]) == pytest.approx([0.5, 0.2, 0.3])
    assert share_of_whole(1.0, 0.5, [None, 2.0, 3.0]) == pytest.approx([0.5, 0.2, 0.3]), "kernels say the proportion"
    assert share_of_whole(1.0, 3.0, [None, 2.0, 1.0]) == pytest.approx([0.05, 0.95 * 2 / 3, 0.95 / 3])
    assert share_of_whole(1.0, 0.4, [None, 0.4, None]) == pytest.approx([0.3, 0.4, 0.3])
    assert share_of_whole(1.0, 0.4, [0.1, 0.3]) == pytest.approx([0.25, 0.75])
