"""Times of single layers."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from heterps.models import Batch, Chain
from heterps.models.batch import Bags, batch_size
from heterps.profile.sweep import WARM_UP_STEPS, Effort, Times, fill_tables, sweep, threads, unbound
from heterps.runtime.settings import Settings
from heterps.runtime.tables import bind_tables
from heterps.store import SparseTable
from tests.profile.sleepers import ONE_STEP, Sleeper, even_batches, sleepy
from tests.runtime import chains


class Counted(Iterator[Batch]):
    """Batches without end, and how many were taken."""

    def __init__(self, batches: list[Batch]) -> None:
        self.taken, self._batches = 0, itertools.cycle(batches)

    def __next__(self) -> Batch:
        self.taken += 1
        return next(self._batches)


def run(chain: Chain, batches: Any = None, *, effort: Effort = ONE_STEP, units: int = 1, **settings: Any) -> Times:
    given = iter(batches) if batches is not None else Counted(even_batches(2))
    return sweep(chain, given, units=units, settings=Settings(**settings), effort=effort)


@pytest.mark.usefixtures("nap_time")
def test_sleeping_layers_take_their_time_and_are_ranked_right() -> None:
    chain = sleepy(Sleeper(forward_s=0.02), Sleeper(backward_s=0.05), Sleeper(forward_s=0.04, backward_s=0.04))
    seconds = run(chain, effort=Effort(steps=3, seconds=10)).median
    by_name = dict(zip([layer.name for layer in chain.layers], seconds, strict=True))
    assert by_name["nap0"] >= 0.02
    assert by_name["nap1"] >= 0.05
    assert by_name["nap2"] >= 0.08
    assert sorted(by_name, key=by_name.__getitem__)[-3:] == ["nap0", "nap1", "nap2"]


def test_every_micro_batch_is_a_call() -> None:
    sleeper = Sleeper(forward_s=0.005)
    seconds = run(sleepy(sleeper), micro_batches=4).median
    assert sleeper.samples == [4, 4, 4, 4] * (WARM_UP_STEPS + 1)
    assert seconds[2] >= 4 * 0.005


def test_a_batch_has_no_more_micro_batches_than_samples() -> None:
    sleeper = Sleeper()
    run(sleepy(sleeper), Counted(even_batches(1, size=3)), micro_batches=8)
    assert sleeper.samples == [1, 1, 1] * (WARM_UP_STEPS + 1)


@pytest.mark.parametrize(
    ("effort", "timed"),
    [
        (Effort(steps=4, seconds=60, least=1), 4),
        (Effort(steps=4, seconds=0, least=2), 2),
        (Effort(steps=2, seconds=0, least=3), 3),
    ],
)
def test_effort_bounds_the_steps(effort: Effort, timed: int) -> None:
    batches = Counted(even_batches(2))
    assert run(chains.small(), batches, effort=effort).seconds.shape == (timed, 5)
    assert batches.taken == WARM_UP_STEPS + timed, "the first ones are not timed"


def test_batches_of_another_size_are_left_out() -> None:
    full, longer = even_batches(1)[0], even_batches(1, size=40)[0]
    short = {name: value[:5] for name, value in full.items()}
    sleeper, batches = Sleeper(), Counted([full, full, short, longer])
    found = run(sleepy(sleeper), batches, effort=Effort(steps=1000, seconds=0, least=1))
    assert sleeper.samples == [16] * (WARM_UP_STEPS + 1)
    assert len(found.seconds) == 1
    assert batches.taken == 6, "which ones are left out does not change how long is measured"


def test_units_are_threads_and_only_while_measuring() -> None:
    before = torch.get_num_threads()
    sleeper = Sleeper()
    run(sleepy(sleeper), units=before + 1)
    assert set(sleeper.threads) == {before + 1}
    assert torch.get_num_threads() == before
    with pytest.raises(KeyError), threads(before + 1):
        raise KeyError
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("settings", [{"precision": "bf16"}, {"optimizer": "sgd"}, {"mode": "async"}])
def test_ways_of_training(settings: dict[str, Any]) -> None:
    times = run(chains.small(), **settings)
    assert (times.seconds > 0).all()


def test_a_step_trains_weights_and_rows_as_plain_training_does() -> None:
    chain = chains.small()
    before = copy.deepcopy(chain.state_dict())
    run(chain)
    assert not torch.equal(chain.state_dict()["fc1.module.0.weight"], before["fc1.module.0.weight"])
    assert chain.tables["rows"].stats().steps == WARM_UP_STEPS + 1


def test_bags_and_shared_tables_are_measured() -> None:
    chain = Chain(
        chains.embedding("rows"),
        chains.embedding("other", reads="more", table="rows"),
        chains.embedding("bag", reads="tags", pooling="mean"),
        chains.fc("logit", ["rows", "other", "bag"], (3 + 2 + 2) * chains.DIM, 1, relu=False),
        chains.loss(),
    )
    assert (run(chain, micro_batches=2).median > 0).all()


def test_median_and_spread_of_steps() -> None:
    times = Times(np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [4.0, 0.0], [5.0, 0.0]]))
    assert times.median.tolist() == [3.0, 0.0]
    assert times.spread == pytest.approx([1 / 3, 0.0])


def test_a_copy_without_tables() -> None:
    chain = chains.small()
    bind_tables(chain)
    table = chain.tables["rows"]
    made = unbound(chain)
    assert made.tables == {}
    assert chain.tables["rows"] is table
    assert all(torch.equal(value, chain.state_dict()[name]) for name, value in made.state_dict().items())
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.zero_()
    assert all(parameter.any() for parameter in chain.parameters())


def test_tables_are_filled_with_the_ids_that_come() -> None:
    chain = Chain(
        chains.embedding("rows"),
        chains.embedding("bag", reads="tags", pooling="sum"),
        chains.fc("logit", ["rows", "bag"], (3 + 2) * chains.DIM, 1, relu=False),
        chains.loss(),
    )
    bind_tables(chain)
    batches = even_batches(3)
    assert fill_tables(chain, iter(batches), seconds=60.0) == sum(map(batch_size, batches))
    tags = [batch["tags"] for batch in batches]
    ids = {"rows": torch.cat([batch["ids"].reshape(-1) for batch in batches]),  # type: ignore[union-attr]
           "bag": torch.cat([bag.ids for bag in tags if isinstance(bag, Bags)])}  # fmt: skip
    for name, table in chain.tables.items():
        assert isinstance(table, SparseTable)
        assert table.stats().rows == len(ids[name].unique())
    counted = Counted(batches)
    assert fill_tables(chain, counted, seconds=0.0) == 16
    assert counted.taken == 1
