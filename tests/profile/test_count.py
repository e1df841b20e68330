"""What layers move and compute, against plain runs and by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from heterps.models import Bags, Batch, BCEWithLogits, Chain, Layer, zoo
from heterps.profile.count import Count, count_layers, dense_state_bytes
from heterps.runtime.tables import bind_tables
from heterps.store import SparseTable
from tests.runtime import chains

SMALL: dict[str, dict[str, Any]] = {
    "ctrdnn": {"slots": 5, "dense": 3, "dim": 4},
    "dlrm": {"slots": 5, "dense": 3, "dim": 4, "bottom": [16, 8], "top": [16, 8]},
    "matchnet": {"dim": 4, "hidden": [8], "vector": 6},
}


def bound(chain: Chain) -> Chain:
    bind_tables(chain)
    return chain


def counted(chain: Chain, batch: Batch, *, samples: int, **options: Any) -> dict[str, Count]:
    return {count.name: count for count in count_layers(bound(chain), batch, samples=samples, **options)}


def size_bytes(value: Tensor | Bags) -> int:
    return value.ids.nbytes + value.offsets.nbytes if isinstance(value, Bags) else value.nbytes


@pytest.mark.parametrize("model", SMALL)
def test_what_crosses_each_cut_is_what_is_alive_in_a_plain_run(model: str) -> None:
    chain = bound(zoo.build(model, **SMALL[model]))
    values = chain(zoo.example(model, 96, **SMALL[model]))
    counts = count_layers(chain, zoo.example(model, 8, **SMALL[model]), samples=96)
    for cut, count in enumerate(counts, start=1):
        assert count.output_bytes == sum(size_bytes(values[name]) for name in chain.alive(cut)), count.name
        assert count.input_bytes == sum(size_bytes(values[name]) for name in chain.layers[cut - 1].reads), count.name
    assert counts[-1].output_bytes == 0, "nothing leaves the loss"


def test_rows_that_a_later_layer_reads_cross_all_cuts_before_it() -> None:
    counts = counted(zoo.build("dlrm", **SMALL["dlrm"]), zoo.example("dlrm", 4, **SMALL["dlrm"]), samples=10)
    rows = 10 * 5 * 4 * 4
    assert counts["embedding"].output_bytes == rows
    assert counts["bottom_fc1"].output_bytes == rows + 10 * 16 * 4
    assert counts["interaction"].output_bytes == 10 * (4 + 15) * 4


@pytest.mark.parametrize("model", SMALL)
def test_counts_grow_with_the_samples(model: str) -> None:
    chain, batch = bound(zoo.build(model, **SMALL[model])), zoo.example(model, 8, **SMALL[model])
    for once, thrice in zip(
        count_layers(chain, batch, samples=32), count_layers(chain, batch, samples=96), strict=True
    ):
        assert thrice.flops == pytest.approx(3 * once.flops)
        assert (thrice.input_bytes, thrice.output_bytes) == (3 * once.input_bytes, 3 * once.output_bytes)
        assert (thrice.rows, thrice.random_bytes) == (3 * once.rows, 3 * once.random_bytes)
        assert thrice.parameter_bytes == once.parameter_bytes, "weights do not"


@pytest.mark.parametrize("model", SMALL)
def test_the_size_of_the_counted_batch_does_not_matter(model: str) -> None:
    chain, batch = bound(zoo.build(model, **SMALL[model])), zoo.example(model, 64, **SMALL[model])
    whole = count_layers(chain, batch, samples=64)
    for few, all_ in zip(count_layers(chain, {k: v[:8] for k, v in batch.items()}, samples=64), whole, strict=True):
        assert few.flops == pytest.approx(all_.flops)
        assert (few.output_bytes, few.rows) == (all_.output_bytes, all_.rows)


def test_flops_of_linear_layers() -> None:
    chain = chains.small()
    counts = counted(chain, chains.random_batches(1)[0], samples=20)
    rows, dense = chains.SLOTS * chains.DIM, chains.DENSE
    forward_and_weights = 2 * 20 * (rows + dense) * 16 * 2
    assert counts["fc1"].flops == forward_and_weights + 2 * 20 * rows * 16, "the batch's own tensors need no gradients"
    assert counts["fc2"].flops == 2 * 20 * 16 * 8 * 3
    assert counts["logit"].flops == 2 * 20 * 8 * 1 * 3
    assert (counts["rows"].flops, counts["loss"].flops) == (0, 0)


def test_flops_of_a_layer_that_reads_the_batch_alone() -> None:
    counts = counted(zoo.build("dlrm", **SMALL["dlrm"]), zoo.example("dlrm", 4, **SMALL["dlrm"]), samples=10)
    assert counts["bottom_fc1"].flops == 2 * 10 * 3 * 16 * 2
    assert counts["bottom_fc2"].flops == 2 * 10 * 16 * 8 * 3
    assert counts["interaction"].flops == 2 * 10 * 6 * 6 * 4 * 3, "a product of a matrix with itself"


def test_flops_of_frozen_weights_are_only_those_towards_the_input() -> None:
    chain = chains.small()
    chain.layers[2].requires_grad_(False)
    counts = counted(chain, chains.random_batches(1)[0], samples=20)
    assert counts["fc2"].flops == 2 * 20 * 16 * 8 * 2


def test_weights() -> None:
    counts = counted(chains.small(), chains.random_batches(1)[0], samples=16)
    assert counts["fc2"].parameter_bytes == (16 * 8 + 8) * 4
    assert (counts["rows"].parameter_bytes, counts["loss"].parameter_bytes) == (0, 0)


def test_rows_and_what_is_exchanged_for_them() -> None:
    counts = counted(chains.small(), chains.random_batches(1)[0], samples=32)
    rows = 32 * chains.SLOTS
    assert (counts["rows"].rows, counts["rows"].row_bytes) == (rows, chains.DIM * 4)
    assert counts["rows"].random_bytes == 3 * rows * chains.DIM * 4
    assert counts["rows"].exchanged_bytes == 2 * rows * (chains.DIM * 4 + 8)
    assert counts["fc1"].rows == counts["fc1"].random_bytes == counts["fc1"].exchanged_bytes == 0


def several_tables() -> Chain:
    """Two tables, one of them for three layers, one of those with bags."""
    return Chain(
        chains.embedding("rows"),
        chains.embedding("other", reads="more", table="rows"),
        chains.embedding("own", reads="user", dim=2),
        chains.embedding("bag", reads="tags", table="rows", pooling="mean"),
        Layer("fc", nn.Linear((3 + 2 + 2) * 4 + 2, 1), reads=["rows", "other", "own", "bag"], writes="logit"),
        chains.loss(),
    )


def test_several_tables_and_bags() -> None:
    batch = chains.random_batches(1, size=16)[0]
    tags = batch["tags"]
    assert isinstance(tags, Bags)
    counts = counted(several_tables(), batch, samples=16)
    assert [counts[name].rows for name in ("rows", "other", "own", "bag")] == [16 * 3, 16 * 2, 16, len(tags.ids)]
    assert counts["own"].row_bytes == 2 * 4
    assert counts["bag"].input_bytes == tags.ids.nbytes + tags.offsets.nbytes
    alive = [16 * 3 * 4, 16 * 2 * 4, 16 * 2, 16 * 2 * 4]
    assert [counts[name].output_bytes for name in counts][:4] == [4 * sum(alive[: n + 1]) for n in range(4)]


def test_integer_tensors_cross_with_their_own_size() -> None:
    chain = Chain(
        Layer("bucket", lambda x: (x * 4).to(torch.int16), reads="dense", writes="buckets"),
        Layer("one", nn.Linear(2, 4), reads="dense", writes="h"),
        Layer("two", lambda h, buckets: h.sum(1) + buckets.sum(1), reads=["h", "buckets"], writes="logit"),
        chains.loss(),
    )
    counts = counted(chain, chains.random_batches(1)[0], samples=16)
    assert counts["bucket"].output_bytes == 16 * 2 * 2
    assert counts["one"].output_bytes == 16 * 2 * 2 + 16 * 4 * 4
    assert counts["one"].flops == 2 * 16 * 2 * 4 * 2


class Halve(nn.Module):
    """Works in place on whatever it gets."""

    def forward(self, *values: Tensor) -> Tensor:
        for value in values:
            value.div_(2) if value.is_floating_point() else value.floor_divide_(2)
        return values[0]


def test_layers_in_place_leave_the_batch_and_earlier_tensors_as_they_are() -> None:
    chain = Chain(
        Layer("fc", nn.Linear(2, 4), reads="dense", writes="h"),
        Layer("halve", Halve(), reads=["h", "dense", "user"], writes="half"),
        Layer("relu", nn.ReLU(inplace=True), reads="half", writes="r"),
        Layer("out", nn.Linear(8, 1), reads=["h", "r"], writes="logit"),
        chains.loss(),
    )
    batch = chains.random_batches(1)[0]
    before = copy.deepcopy(batch)
    counts = counted(chain, batch, samples=16)
    assert all(torch.equal(batch[name], before[name]) for name in ("dense", "user", "label"))  # type: ignore[arg-type]
    assert counts["halve"].output_bytes == 2 * 16 * 4 * 4
    assert counts["out"].flops == 2 * 16 * 8 * 3


def test_activations_in_half_precision_are_half_as_large() -> None:
    chain, batch = bound(chains.small()), chains.random_batches(1)[0]
    full = {c.name: c for c in count_layers(chain, batch, samples=16)}
    half = {c.name: c for c in count_layers(chain, batch, samples=16, precision=torch.bfloat16)}
    assert half["fc1"].output_bytes == full["fc1"].output_bytes // 2
    assert half["rows"].output_bytes == full["rows"].output_bytes, "rows stay float32"
    assert half["fc1"].flops == full["fc1"].flops


@pytest.mark.parametrize("model", SMALL)
def test_counting_leaves_the_chain_as_it_is(model: str) -> None:
    chain, batch = bound(zoo.build(model, **SMALL[model])), zoo.example(model, 8, **SMALL[model])
    for layer in chain.embeddings:
        assert isinstance(layer.table, SparseTable)
        layer.table.pull(torch.arange(3))
    rows = {name: table.stats().rows for name, table in chain.tables.items()}
    before = copy.deepcopy(chain.state_dict())
    count_layers(chain, batch, samples=100)
    assert all(torch.equal(value, before[name]) for name, value in chain.state_dict().items())
    assert all(parameter.grad is None for parameter in chain.parameters())
    assert {name: table.stats().rows for name, table in chain.tables.items()} == rows == dict.fromkeys(rows, 3)


def test_state_of_a_dense_layer_is_weights_buffers_and_the_optimizers() -> None:
    layer = Layer("norm", nn.BatchNorm1d(10), reads="x", writes="y")
    weights, buffers = 2 * 10 * 4, 2 * 10 * 4 + 8
    assert dense_state_bytes(layer, None) == weights + buffers
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(4, 10)).sum().backward()
    optimizer.step()
    assert dense_state_bytes(layer, optimizer) == weights + buffers + 2 * weights + 2 * 4, "two moments, two counters"


def test_a_loss_of_labels_alone_is_counted() -> None:
    chain = Chain(
        Layer("fc", nn.Linear(2, 1), reads="dense", writes="logit"),
        Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss", kind="loss"),
    )
    counts = counted(chain, chains.random_batches(1)[0], samples=16)
    assert counts["loss"].kind == "loss"
    assert counts["loss"].input_bytes == 16 * 2 * 4
