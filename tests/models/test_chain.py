"""Chains: names, what is alive at a cut, and running layers."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from heterps.errors import InvalidInput
from heterps.models import BCE, Bags, BCEWithLogits, Chain, Hinge, Layer, SparseEmbedding
from tests.models.tables import bind


def layer(name: str, reads, writes) -> Layer:
    return Layer(name, nn.Identity(), reads=reads, writes=writes)


def small() -> Chain:
    """The design's example."""
    torch.manual_seed(0)
    return Chain(
        SparseEmbedding("emb", reads="ids", writes="e", dim=4),
        Layer("fc1", nn.Sequential(nn.Linear(3 * 4 + 2, 8), nn.ReLU()), reads=["e", "dense"], writes="h"),
        Layer("fc2", nn.Linear(8, 1), reads="h", writes="logit"),
        Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss"),
    )


BATCH = {"ids": torch.arange(15).view(5, 3), "dense": torch.ones(5, 2), "label": torch.tensor([0.0, 1, 1, 0, 1])}


def test_the_designs_example():
    chain = bind(small())
    assert (chain.inputs, chain.loss, chain.score, chain.label) == (("ids", "dense", "label"), "loss", "logit", "label")
    assert set(chain.state_dict()) == {
        "fc1.module.0.weight", "fc1.module.0.bias", "fc2.module.weight", "fc2.module.bias"
    }  # fmt: skip
    assert list(chain.tables) == ["emb"]
    values = chain(BATCH)
    assert values["e"].shape == (5, 3, 4)
    joined = torch.cat([values["e"].flatten(1), BATCH["dense"]], dim=1)
    logit = chain.layers[2].module(chain.layers[1].module(joined))
    torch.testing.assert_close(values["logit"], logit)
    torch.testing.assert_close(chain.predict(BATCH), logit.squeeze(1))
    expected = nn.functional.binary_cross_entropy_with_logits(logit.squeeze(1), BATCH["label"])
    torch.testing.assert_close(values["loss"], expected)


def test_a_copy_has_layers_of_its_own():
    chain = small()
    copied = copy.deepcopy(chain)
    assert copied.layers[1] is copied.fc1
    assert copied.layers[1] is not chain.layers[1]
    assert {id(weight) for layer in copied.layers for weight in layer.parameters()} == {
        id(weight) for weight in copied.parameters()
    }


def test_layers_may_be_called_as_attributes_are():
    names = ["score", "label", "loss", "name", "layers", "inputs", "tables", "alive"]
    layers = [layer(name, f"t{number}", f"t{number + 1}") for number, name in enumerate(names)]
    chain = Chain(*layers)
    assert list(chain._modules) == names
    assert (chain.loss, chain.name, chain.layers) == ("t8", "chain", tuple(layers))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([], "at least one layer"),
        ([nn.Linear(1, 1)], "wrap modules in heterps.Layer"),
        ([layer("a", "x", "y"), layer("a", "y", "z")], "used once"),
        ([layer("a.b", "x", "y")], "no dots"),
        ([layer("forward", "x", "y")], "no attribute of modules"),
        ([layer("a", "x", "y"), layer("b", "x", "y")], "'b' writes 'y', which is written or read before"),
        ([layer("a", "x", "y"), layer("b", "y", "x")], "'b' writes 'x', which is written or read before"),
        ([layer("a", "x", "x")], "'a' writes 'x', which is written or read before"),
        ([layer("a", "x", ["y", "z"])], "writes the loss alone, not y, z"),
        (
            [layer("a", "x", "ids"), SparseEmbedding("e", reads="ids", writes="r", dim=1), layer("b", "r", "z")],
            "'e' reads its ids from the batch",
        ),
        (
            [layer("a", "x", "y"), SparseEmbedding("e", reads=["i", "y"], writes="r", dim=1, ids=lambda i, y: i + y)],
            "'e' reads its ids from the batch",
        ),
    ],
)
def test_wrong_chains_are_refused(layers, message):
    with pytest.raises(InvalidInput, match=message):
        Chain(*layers)


def test_wrong_layers_are_refused():
    for reads in ("", [], ["x", "x"], ["x", 3]):
        with pytest.raises(InvalidInput, match="reads names at least one tensor, each once"):
            layer("a", reads, "y")
    with pytest.raises(InvalidInput, match="reads one tensor of ids"):
        SparseEmbedding("e", reads=["a", "b"], writes="r", dim=1)
    with pytest.raises(InvalidInput, match="dim is at least 1"):
        SparseEmbedding("e", reads="a", writes="r", dim=0)
    with pytest.raises(InvalidInput, match="'sum' or 'mean', not 'max'"):
        SparseEmbedding("e", reads="a", writes="r", dim=1, pooling="max")
    with pytest.raises(InvalidInput, match=r"\[ids, 2\], not \[3, 1\]"):
        SparseEmbedding("e", reads="a", writes="r", dim=2, initial_rows=torch.zeros(3, 1))
    with pytest.raises(InvalidInput, match="score: no layer reads or writes 'nothing'"):
        Chain(layer("a", "x", "y"), score="nothing")


def test_what_a_module_gives_is_counted():
    with pytest.raises(InvalidInput, match="'a' writes y, but its module gives 2 values"):
        Chain(Layer("a", lambda x: (x, x), reads="x", writes="y"))({"x": torch.zeros(1)})


def test_a_batch_without_what_is_read():
    with pytest.raises(InvalidInput, match=r"no 'dense', which 'fc1' reads.*Did you mean 'densed'"):
        bind(small())({"ids": BATCH["ids"], "densed": BATCH["dense"], "label": BATCH["label"]})


def test_an_embedding_without_a_table():
    with pytest.raises(InvalidInput, match="'emb' has no table yet"):
        small()(BATCH)


def test_a_chain_without_a_score():
    with pytest.raises(InvalidInput, match="names no score"):
        Chain(layer("a", "x", "y")).predict({"x": torch.zeros(1)})


def test_predict_runs_what_the_score_needs():
    def fail(*_):
        raise AssertionError("not needed")

    chain = Chain(
        Layer("a", lambda x: x + 1, reads="x", writes="y"),
        Layer("other", fail, reads="y", writes="z"),
        Layer("b", lambda y: y * 2, reads="y", writes="score"),
        Layer("loss", fail, reads=["score", "z", "label"], writes="loss"),
        score="score",
    )
    assert torch.equal(chain.predict({"x": torch.arange(3)}), torch.tensor([2, 4, 6]))


@st.composite
def random_chains(draw: st.DrawFn) -> Chain:
    """Layers that read any earlier tensors and entries of the batch, and write one to three."""
    written: list[str] = []
    layers = []
    count = draw(st.integers(1, 7))
    for number in range(count):
        known = [*written, "b0", "b1", "b2"]
        reads = draw(st.lists(st.sampled_from(known), min_size=1, max_size=4, unique=True))
        writes = [f"t{number}_{i}" for i in range(1 if number == count - 1 else draw(st.integers(1, 3)))]
        layers.append(layer(f"l{number}", reads, writes))
        written += writes
    return Chain(*layers)


@given(random_chains())
def test_what_is_alive_is_what_a_simulation_needs(chain: Chain):
    """A tensor is alive at a cut if running the layers behind it without the tensor would miss it."""
    for cut in range(len(chain.layers) + 1):
        known = set(chain.inputs)
        missing = set()
        for one in chain.layers[cut:]:
            missing |= {tensor for tensor in one.reads if tensor not in known}
            known |= set(one.writes)
        assert set(chain.alive(cut)) == missing
        assert len(chain.alive(cut)) == len(missing)


@given(random_chains(), st.data())
def test_what_a_stage_reads_of_the_batch(chain: Chain, data: st.DataObject):
    first = data.draw(st.integers(0, len(chain.layers) - 1))
    last = data.draw(st.integers(first, len(chain.layers) - 1))
    read = [tensor for one in chain.layers[first : last + 1] for tensor in one.reads if tensor.startswith("b")]
    assert set(chain.read_by(first, last)) == set(read)
    assert all(chain.writer(tensor) is None for tensor in read)
    assert all(chain.writer(tensor) == number for number, one in enumerate(chain.layers) for tensor in one.writes)


@pytest.mark.parametrize("shape", [(5,), (5, 3), (5, 3, 2)])
def test_rows_have_slots_or_the_ids_own_shape(shape):
    ids = torch.arange(torch.tensor(shape).prod().item()).view(shape)
    plain = SparseEmbedding("e", reads="ids", writes="r", dim=4)
    kept = SparseEmbedding("e", reads="ids", writes="r", dim=4, keep_shape=True)
    bind(Chain(plain)), bind(Chain(kept))
    assert plain(ids).shape == (5, ids[0].numel(), 4)
    assert kept(ids).shape == (*shape, 4)
    assert torch.equal(plain(ids).flatten(), kept(ids).flatten())


@pytest.mark.parametrize("pooling", ["sum", "mean"])
def test_bags_are_pooled(pooling):
    bags = Bags(torch.tensor([3, 3, 5, 7]), torch.tensor([0, 2, 2, 3, 4]), slots=2)
    embedding = SparseEmbedding("e", reads="ids", writes="r", dim=4, pooling=pooling)
    chain = bind(Chain(embedding))
    rows = chain.tables["e"].pull(torch.tensor([3, 5, 7]), create=False)
    expected = torch.stack([rows[0] * (2 if pooling == "sum" else 1), torch.zeros(4), rows[1], rows[2]]).view(2, 2, 4)
    torch.testing.assert_close(embedding(bags), expected)
    assert chain.tables["e"].stats().rows == 0, "reading makes no rows"
    with pytest.raises(InvalidInput, match="needs pooling"):
        bind(Chain(SparseEmbedding("e", reads="ids", writes="r", dim=4))).layers[0](bags)


def test_made_ids():
    embedding = SparseEmbedding("e", reads=["a", "b"], writes="r", dim=2, ids=lambda a, b: a * 10 + b)
    small = {"a": torch.tensor([1, 2], dtype=torch.int32), "b": torch.tensor([3, 4], dtype=torch.int32)}
    ids = embedding.ids_of({**small, "c": torch.zeros(2)})
    assert ids.tolist() == [13, 24]
    assert ids.dtype == torch.int64
    assert SparseEmbedding("e", reads="a", writes="r", dim=2).ids_of({"a": ids}) is ids


def test_losses():
    scores, labels = torch.tensor([[0.2], [-0.5], [3.0]]), torch.tensor([1.0, 0, 1])
    assert Hinge()(scores, labels).item() == pytest.approx((0.8 + 0.5 + 0) / 3)
    assert Hinge(2.0)(scores, labels).item() == pytest.approx((1.8 + 1.5 + 0) / 3)
    expected = -(torch.sigmoid(scores[0]).log() + torch.sigmoid(-scores[1]).log() + torch.sigmoid(scores[2]).log()) / 3
    assert BCEWithLogits()(scores, labels).item() == pytest.approx(expected.item())
    assert BCE()(torch.sigmoid(scores), labels).item() == pytest.approx(expected.item(), rel=1e-5)
