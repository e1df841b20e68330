"""Chains cut from ordinary modules give what the modules give."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.models import BCE, Batch, Chain, batch_size, cut
from tests.models import modules
from tests.models.batches import SIZE, bags, batch_of, ids, made, mixed, numbers
from tests.models.tables import bind, bind_weights


def arguments(model: nn.Module, batch: Batch) -> dict[str, Any]:
    """As a user would call the module."""
    if isinstance(model, modules.Residual):
        return {"batch": batch}
    called = {name: value for name, value in batch.items() if name != "label"}
    if isinstance(model, modules.BagModel):
        tags = called["tags"]
        return {**called, "tags": tags.ids, "offsets": tags.offsets[: None if model.tags.include_last_offset else -1]}
    return called


def logits_of(result: Any) -> Tensor:
    return result[1] if isinstance(result, tuple) else result


CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], dict[str, Any], list[str]]] = {
    "dlrm": (
        modules.DlrmLike, {"ids": ids(3), "dense": numbers(3)}, {},
        ["embeddings_0", "embeddings_1", "embeddings_2", "bottom_0", "bottom_2", "matmul", "top_0", "top_3", "loss"],
    ),
    "one table": (
        modules.OneTable, {"ids": ids(3)}, {}, ["embedding", "linear", "features", "fc1", "norm", "fc2", "loss"]
    ),
    "residual": (
        modules.Residual, {"ids": ids(3)}, {},
        ["table", "features", "blocks_0_0", "blocks_0_1", "blocks_1_0", "blocks_1_1", "blocks_2_0", "blocks_2_1", "out",
         "loss"],
    ),
    "siamese": (
        modules.Siamese, {"query": ids(3), "title": ids(5)}, {}, ["words", "words_2", "tower_0", "scale", "loss"]
    ),
    "two towers": (
        modules.TwoTowers, {"query": ids(3), "title": ids(5)}, {},
        ["query_words", "title_words", "features", "query_tower_0", "query_tower_2", "title_tower_0", "title_tower_2",
         "loss"],
    ),
    "bags, mean": (
        modules.BagModel, {"tags": bags(30), "ids": ids(3, rows=90), "country": ids(rows=7)}, {},
        ["tags", "slots", "country", "fc", "loss"],
    ),
    "bags, sum": (
        lambda: modules.BagModel("sum"), {"tags": bags(30), "ids": ids(3, rows=90), "country": ids(rows=7)}, {},
        ["tags", "slots", "country", "fc", "loss"],
    ),
    "bags with a last offset": (
        lambda: modules.BagModel(last=True), {"tags": bags(30), "ids": ids(3, rows=90), "country": ids(rows=7)}, {},
        ["tags", "slots", "country", "fc", "loss"],
    ),
    "cross": (
        modules.CrossNet, {"x": mixed}, {},
        ["tables_a", "tables_b", "features", "matmul", "matmul_1", "mlp_0", "mlp_2", "loss"],
    ),
    "sequence": (
        modules.Sequence, {"ids": ids(5)}, {"leaves": ["position"]},
        ["items", "position", "attention", "recurrent", "out", "loss"],
    ),
}  # fmt: skip
every_case = pytest.mark.parametrize(("make", "columns", "options", "names"), CASES.values(), ids=CASES)


@every_case
def test_chain_gives_what_the_module_gives(make, columns, options, names):
    """Scores, losses and dense gradients, on batches that were not the example."""
    torch.manual_seed(0)
    model = make().eval()
    chain = bind(Chain.from_module(model, batch_of(**columns), **options)).eval()
    assert [layer.name for layer in chain.layers] == names
    for seed in range(1, 4):
        batch = batch_of(seed, **columns)
        plain = copy.deepcopy(model)
        logits = logits_of(plain(**arguments(model, batch)))
        loss = functional.binary_cross_entropy_with_logits(logits.reshape(-1), batch["label"])
        loss.backward()
        model.zero_grad()
        values = chain(batch)
        values[chain.loss].backward()
        torch.testing.assert_close(values[chain.score], logits, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(values[chain.loss], loss, rtol=1e-5, atol=1e-6)
        for name, weight in model.named_parameters():
            if weight.grad is not None:  # rows are in tables
                expected = plain.get_parameter(name).grad
                torch.testing.assert_close(weight.grad, expected, rtol=1e-4, atol=1e-6, msg=f"{name}, seed {seed}")


@every_case
def test_rows_have_the_modules_gradients(make, columns, options, names):
    torch.manual_seed(0)
    model = make().eval()
    chain = Chain.from_module(model, batch_of(**columns), **options).eval()
    ours = bind_weights(chain, {layer.table_name: layer.initial_rows for layer in chain.embeddings})
    batch = batch_of(7, **columns)
    chain(batch)[chain.loss].backward()
    logits = logits_of(model(**arguments(model, batch)))
    functional.binary_cross_entropy_with_logits(logits.reshape(-1), batch["label"]).backward()
    for weight in ours.values():
        theirs = next(one for one in model.parameters() if one.shape == weight.shape and torch.equal(one, weight))
        torch.testing.assert_close(weight.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@every_case
def test_dense_weights_are_the_modules_own_and_rows_come_along(make, columns, options, names):
    model = make()
    chain = Chain.from_module(model, batch_of(**columns), **options)
    rows = {layer.initial_rows.data_ptr() for layer in chain.embeddings}
    dense = {id(weight) for weight in model.parameters() if weight.data_ptr() not in rows}
    assert {id(weight) for weight in chain.parameters()} == dense
    assert [weight.data_ptr() in rows for weight in model.parameters()].count(True) == len(rows)


@every_case
def test_the_module_stays_as_it_was(make, columns, options, names):
    model = make()
    next(iter(model.children())).eval()
    attributes, modes = set(vars(model)), [_modes(module) for module in model.modules()]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    chain = Chain.from_module(model, batch_of(**columns), **options)
    assert all(layer.table is None for layer in chain.embeddings), "tables are the runtime's to bind"
    assert set(vars(model)) == attributes
    assert [_modes(module) for module in model.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def _modes(module: nn.Module) -> tuple[bool, bool]:
    return module.training, getattr(module, "sparse", False)


@every_case
def test_layers_hand_on_samples(make, columns, options, names):
    """What layers write has the samples first: no weights, no sizes."""
    chain = bind(Chain.from_module(make(), batch_of(**columns), **options)).eval()
    values = chain(batch_of(1, **columns))
    for layer in chain.layers[:-1]:
        for tensor in layer.writes:
            assert isinstance(values[tensor], Tensor)
            assert tensor == "binary_cross_entropy_with_logits" or len(values[tensor]) == SIZE, tensor


def test_sizes_are_read_of_the_batch():
    """Rows are not kept to the end of the chain for their number of samples."""
    chain = Chain.from_module(modules.Residual(), batch_of(ids=ids(3)))
    assert "table" not in chain.alive(3)
    assert set(chain.layers[-2].reads) == {"ids", "label", "add_3"}


def test_views_are_not_handed_on_beside_what_they_view():
    chain = Chain.from_module(modules.DlrmLike(), batch_of(ids=ids(3), dense=numbers(3)))
    assert chain.layers[5].reads == ("bottom_3", "stack"), "not the transposed stack as well"


def test_sizes_of_activations():
    def forward(self, x):
        h = self.fc(self.emb(x).sum(1))
        return self.fc2(h.expand(h.shape[0], 6)).reshape(h.shape[0], -1)

    model = made(forward, fc2=nn.Linear(6, 1)).eval()
    batch = batch_of(x=ids(3))
    assert torch.equal(bind(Chain.from_module(model, batch)).predict(batch), model(batch["x"])[:, 0])


@every_case
def test_micro_batches_and_pickles_give_the_same(make, columns, options, names):
    batch = batch_of(1, **columns)
    chain = Chain.from_module(make(), batch_of(**columns), **options).eval()
    copied = bind(pickle.loads(pickle.dumps(chain)))
    parts = [batch_size(part) * copied(part)[chain.loss] for part in cut(batch, 5)]
    torch.testing.assert_close(sum(parts) / SIZE, bind(chain)(batch)[chain.loss])


def test_dropout_and_batch_norm_follow_the_mode():
    model = modules.OneTable()
    chain, batch = bind(Chain.from_module(model, batch_of(ids=ids(3)))), batch_of(1, ids=ids(3))
    before = model.norm.running_mean.clone()
    chain.eval()
    assert torch.equal(chain.predict(batch), chain.predict(batch))
    assert torch.equal(model.norm.running_mean, before)
    chain.train()
    assert not torch.equal(chain.predict(batch), chain.predict(batch)), "dropout drops"
    assert not torch.equal(model.norm.running_mean, before)


def test_embeddings_have_their_own_tables_with_the_options():
    chain = Chain.from_module(
        modules.DlrmLike(), batch_of(ids=ids(3), dense=numbers(3)), optimizer="adagrad", lr=0.5, seed=3
    )
    assert [layer.table_name for layer in chain.embeddings] == ["embeddings_0", "embeddings_1", "embeddings_2"]
    assert [len(layer.initial_rows) for layer in chain.embeddings] == [10, 20, 30]
    assert chain.embeddings[1].options == {"dim": 4, "optimizer": "adagrad", "lr": 0.5, "seed": 3}
    batch = batch_of(1, ids=ids(3), dense=numbers(3))
    assert torch.equal(chain.embeddings[1].ids_of(batch), batch["ids"][:, 1])


def test_one_embedding_called_twice_is_one_table():
    chain = Chain.from_module(modules.Siamese(), batch_of(query=ids(3), title=ids(5)))
    assert [layer.table_name for layer in chain.embeddings] == ["words", "words"]


def test_embeddings_of_one_weight_share_a_table():
    model = modules.TwoTowers()
    model.title_words.weight = model.query_words.weight
    chain = Chain.from_module(model, batch_of(query=ids(3), title=ids(5)))
    assert [layer.table_name for layer in chain.embeddings] == ["query_words", "query_words"]


def test_frozen_rows_do_not_move():
    model = modules.Siamese()
    model.words.weight.requires_grad_(False)
    chain = Chain.from_module(model, batch_of(query=ids(3), title=ids(5)), optimizer="adam", lr=0.1)
    assert chain.embeddings[0].options == {"dim": 4, "optimizer": "sgd", "lr": 0.0}


def test_an_embedding_among_the_leaves_stays_dense():
    model = modules.OneTable()
    chain = Chain.from_module(model, batch_of(ids=ids(3)), leaves=["linear"])
    assert [layer.name for layer in chain.embeddings] == ["embedding"]
    assert any(weight is model.linear.weight for weight in chain.parameters())
    chain = Chain.from_module(model, batch_of(ids=ids(3)), leaves=[nn.Embedding])
    assert not chain.embeddings


@pytest.mark.parametrize("sparse", [False, True])
def test_sparse_gradients_of_the_module_are_compared(sparse: bool):
    model = made(lambda self, x: self.fc(self.emb(x) * self.kept(x)).sum((1, 2)), kept=nn.Embedding(10, 4))
    model.emb.sparse = model.kept.sparse = sparse
    chain = Chain.from_module(model, batch_of(x=ids(3)), leaves=["kept"])
    assert [layer.name for layer in chain.layers] == ["emb", "kept", "fc", "loss"]
    assert (model.emb.sparse, model.kept.sparse) == (sparse, sparse)


def test_a_leaf_goes_by_any_of_its_names():
    table = nn.Embedding(10, 4)
    model = made(lambda self, x: self.fc(self.one(x)).sum((1, 2)), one=table, other=table)
    for name in ("one", "other"):
        assert not Chain.from_module(model, batch_of(x=ids(3)), leaves=[name]).embeddings


def test_detached_rows_get_no_gradient():
    model = made(lambda self, x: self.fc(self.emb(x) + self.still(x).detach()).sum((1, 2)), still=nn.Embedding(10, 4))
    batch = batch_of(x=ids(3))
    chain = Chain.from_module(model, batch)
    rows = bind_weights(chain, {layer.table_name: layer.initial_rows for layer in chain.embeddings})
    chain(batch)[chain.loss].backward()
    assert rows["emb"].grad is not None
    assert rows["still"].grad is None


def test_ids_of_several_entries():
    model = made(lambda self, user, item: self.fc(self.emb(user * 5 + item)).sum((1, 2)))
    chain = Chain.from_module(model, batch_of(user=ids(3, rows=2), item=ids(3, rows=5)))
    assert chain.embeddings[0].reads == ("user", "item")
    batch = batch_of(1, user=ids(3, rows=2), item=ids(3, rows=5))
    assert torch.equal(chain.embeddings[0].ids_of(batch), batch["user"] * 5 + batch["item"])


def test_ids_of_bags_may_be_changed():
    class Tags(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag, self.fc = nn.EmbeddingBag(10, 4), nn.Linear(4, 1)

        def forward(self, tags, tags_offsets):
            return self.fc(self.bag(tags % 10, tags_offsets))

    batch = batch_of(tags=bags(100))
    looked_up = Chain.from_module(Tags(), batch).embeddings[0].ids_of(batch)
    assert torch.equal(looked_up.ids, batch["tags"].ids % 10)
    assert torch.equal(looked_up.offsets, batch["tags"].offsets)


def test_another_loss_and_label():
    batch = batch_of(x=ids(3), clicked=numbers())
    model = made(lambda self, x: self.fc(self.emb(x)).sum((1, 2)))
    chain = bind(Chain.from_module(model, batch, loss=nn.MSELoss(), label="clicked", name="clicks"))
    assert (chain.name, chain.label) == ("clicks", "clicked")
    values = chain(batch)
    torch.testing.assert_close(values["loss"], functional.mse_loss(model(batch["x"]), batch["clicked"]))


def test_names_that_others_use_already():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb, self.label, self.loss = nn.Embedding(10, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, input):  # noqa: A002
            return self.loss(self.label(self.emb(input)))

    batch = batch_of(input=ids())
    chain = bind(Chain.from_module(Odd(), batch))
    assert [layer.name for layer in chain.layers] == ["emb", "label", "loss", "loss_2"]
    assert chain(batch)[chain.loss].ndim == 0


def test_what_cannot_be_traced_may_be_a_leaf():
    class Branch(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 1e9 else x

    model = made(lambda self, x: self.branch(self.fc(self.emb(x)).sum((1, 2))), branch=Branch())
    for leaves in (["branch"], [Branch], [model.branch]):
        assert len(Chain.from_module(model, batch_of(x=ids(3)), leaves=leaves).layers) == 3


def test_probabilities_with_a_loss_of_probabilities():
    model = made(lambda self, x: torch.sigmoid(self.fc(self.emb(x)).sum((1, 2))))
    assert Chain.from_module(model, batch_of(x=ids(3)), loss=BCE()).score == "sigmoid"


def test_the_rows_may_be_the_scores():
    chain = bind(Chain.from_module(made(lambda self, x: self.emb(x)[:, :, 0].sum(1)), batch_of(x=ids(3))))
    assert len(chain.layers) == 3
    model = made(lambda self, x: self.one(x), one=nn.Embedding(10, 1))
    batch = batch_of(x=ids())
    chain = bind(Chain.from_module(model, batch))
    assert torch.equal(chain.predict(batch), model(batch["x"])[:, 0])


def test_layers_do_not_change_what_they_are_handed():
    """In training rows and activations are leaves of autograd, which forbids it."""

    def forward(self, x):
        h, g, e = self.emb(x), self.emb(x + 1), self.emb(x + 2)
        h += 1
        h = self.relu(h) + functional.relu(g, inplace=True) + e.mul_(2)
        return self.fc(h).sum((1, 2))

    relu = nn.ReLU(inplace=True)
    model = made(forward, relu=relu)
    chain = Chain.from_module(model, batch_of(x=ids(3, rows=8)))
    assert relu.inplace
    assert model.relu is relu
    rows = [torch.randn(5, 3, 4, requires_grad=True) for _ in range(3)]
    chain.layers[3](*rows).sum().backward()
    assert all(one.grad is not None for one in rows)
