"""The zoo's chains against their twins in plain PyTorch, and the paper's models against the planning problems."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from heterps.errors import InvalidInput
from heterps.models import Chain, SparseEmbedding, batch_size, cut, zoo
from heterps.schedule.paper import MODELS, paper_layers
from heterps.schedule.roofline import FLOAT_BYTES
from tests.models.tables import bind, bind_weights

SMALL = {"dim": 4, "init_scale": 0.5}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("ctrdnn", {"hidden": (8, 8), "slots": 5, "dense": 3}),
    ("ctrdnn", {"hidden": (), "slots": 3, "dense": 0}),
    ("ctrdnn", {"hidden": [8, 6], "slots": 5, "dense": 3, "ids_per_slot": 3}),
    ("ctrdnn", {"paper": True, "slots": 5, "hidden": (8, 8, 8, 8, 8), "ids_per_slot": 2}),
    ("matchnet", {"hidden": (8,), "vector": 6, "query_words": 3, "title_words": 5}),
    ("matchnet", {"paper": True, "hidden": (8, 7), "vector": 6, "margin": 0.5}),
    ("2emb", {"hidden": (8, 8), "slots": 5, "user_slots": 2, "dense": 3}),
    ("2emb", {"paper": True, "slots": 4, "user_slots": 3, "ids_per_slot": 2, "hidden": (8, 8)}),
    ("nce", {"slots": 3, "ids_per_slot": 2, "vector": 8, "candidates": 5}),
    ("nce", {"paper": True, "slots": 3, "vector": 8, "candidates": 5}),
    ("dlrm", {"slots": 5, "dense": 3, "bottom": (8,), "top": (8, 8)}),
    ("deepfm", {"slots": 5, "dense": 3, "hidden": (8,)}),
    ("deepfm", {"slots": 5, "dense": 0, "hidden": (8,)}),
    ("dcn-v2", {"slots": 3, "dense": 3, "hidden": (8, 8)}),
    ("dcn-v2", {"slots": 3, "dense": 3, "hidden": (8,), "rank": 2, "structure": "parallel", "crosses": 2}),
    ("wide-and-deep", {"slots": 5, "dense": 3, "hidden": (8,)}),
    ("wide-and-deep", {"slots": 5, "dense": 0, "hidden": (8,)}),
]
every_case = pytest.mark.parametrize(("name", "args"), [(name, {**SMALL, **args}) for name, args in CASES])
ROWS = 50


def test_every_model_is_tested():
    assert {name for name, _ in CASES} == set(zoo.names())


@every_case
def test_chain_is_its_twin(name: str, args: dict[str, Any]):
    """Loss, score and dense gradients; `copy_weights` leaves no difference."""
    chain, twin = bind(zoo.build(name, **args)), zoo.twin(name, rows=ROWS, **args)
    assert max(zoo.compare_weights(chain, twin).values()) > 0.1
    zoo.copy_weights(chain, twin)
    assert set(zoo.compare_weights(chain, twin).values()) == {0.0}
    for seed in range(3):
        batch = zoo.example(name, 17, rows=ROWS, seed=seed, **args)
        chain.zero_grad(), twin.zero_grad()
        values = chain(batch)
        loss, score = twin(batch)
        torch.testing.assert_close(values[chain.loss], loss, rtol=1e-5, atol=1e-6)
        if chain.score is not None:
            torch.testing.assert_close(values[chain.score].view_as(score), score, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(chain.predict(batch), score, rtol=1e-5, atol=1e-6)
        values[chain.loss].backward()
        loss.backward()
        for layer_name, weight in chain.named_parameters():
            theirs = twin.get_parameter(layer_name.replace(".module.", ".", 1)).grad
            torch.testing.assert_close(weight.grad, theirs, rtol=1e-4, atol=1e-6, msg=f"{layer_name}, seed {seed}")


@every_case
def test_rows_have_the_twins_gradients(name: str, args: dict[str, Any]):
    chain, twin = bind(zoo.build(name, **args)), zoo.twin(name, rows=ROWS, **args)
    zoo.copy_weights(chain, twin)
    theirs = {layer.name: twin.get_parameter(f"{layer.name}.weight") for layer in chain.embeddings}
    ours = bind_weights(chain, theirs)
    batch = zoo.example(name, 17, rows=ROWS, seed=5, **args)
    chain(batch)[chain.loss].backward()
    twin(batch)[0].backward()
    for table, weight in ours.items():
        torch.testing.assert_close(weight.grad, theirs[table].grad, rtol=1e-4, atol=1e-6, msg=table)


@every_case
def test_loss_is_the_mean_over_samples(name: str, args: dict[str, Any]):
    """So that micro-batches add up to the batch."""
    chain, batch = bind(zoo.build(name, **args)), zoo.example(name, 17, rows=ROWS, **args)
    parts = [batch_size(part) * chain(part)[chain.loss] for part in cut(batch, 3)]
    torch.testing.assert_close(sum(parts) / 17, chain(batch)[chain.loss])


@every_case
def test_weights_follow_from_the_seed_alone(name: str, args: dict[str, Any]):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = zoo.build(name, seed=3, **args)
    assert torch.equal(torch.get_rng_state(), before), "torch's generator is left as it was"
    torch.rand(5)
    second, third = zoo.build(name, seed=3, **args), zoo.build(name, seed=4, **args)
    ours, same, other = (dict(chain.named_parameters()) for chain in (first, second, third))
    assert all(torch.equal(ours[key], same[key]) for key in ours)
    assert any(not torch.equal(ours[key], other[key]) for key in ours)
    assert all(layer.options["seed"] == 3 for layer in first.embeddings)


@every_case
def test_chains_travel(name: str, args: dict[str, Any]):
    chain = zoo.build(name, **args)
    copy = bind(pickle.loads(pickle.dumps(chain)))
    batch = zoo.example(name, 4, rows=ROWS, **args)
    assert torch.equal(copy(batch)["loss"], bind(chain)(batch)["loss"])


@pytest.mark.parametrize("name", MODELS)
def test_paper_models_have_the_layers_of_the_planning_problem(name: str):
    work = paper_layers(name)
    with torch.device("meta"):
        chain = Chain(*zoo.model(name, paper=True).layers())
    assert [layer.name for layer in chain.layers] == [layer.name for layer in work]
    batch = zoo.example(name, 1, paper=True)
    for layer, counted in zip(chain.layers, work, strict=True):
        if isinstance(layer, SparseEmbedding):
            assert layer.dim * FLOAT_BYTES == counted.row_bytes
            assert layer.ids_of(batch).numel() == counted.rows
        else:
            weights = sum(weight.numel() for weight in layer.parameters())
            assert (weights * FLOAT_BYTES, layer.kind) == (counted.parameter_bytes, counted.kind), layer.name


def test_twins_separate_rows_from_dense_weights():
    twin = zoo.twin("wide-and-deep", rows=10, dim=2, slots=3, hidden=(4,))
    assert [tuple(weight.shape) for weight in twin.embedding_parameters()] == [(10, 1), (10, 2)]
    assert len(twin.embedding_parameters()) + len(twin.dense_parameters()) == len(list(twin.parameters()))
    assert not {id(weight) for weight in twin.embedding_parameters()} & {id(w) for w in twin.dense_parameters()}


def test_embedding_options_reach_the_tables():
    chain = zoo.build("deepfm", optimizer="adagrad", lr=0.5, init_scale=0.2, seed=7)
    for layer in chain.embeddings:
        assert {**layer.options, "dim": 0} == {
            "dim": 0, "optimizer": "adagrad", "lr": 0.5, "init_scale": 0.2, "seed": 7
        }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("ctrdn", {}, "unknown model 'ctrdn'.*Did you mean 'ctrdnn'"),
        ("ctrdnn", {"hiden": [4]}, "unknown key 'hiden'. Did you mean 'hidden'"),
        ("ctrdnn", {"bananas": 1}, "bananas = 1: unknown key; the keys here are dim"),
        ("ctrdnn", {"dim": 0}, "dim = 0.*1 or more"),
        ("ctrdnn", {"dim": "16"}, "dim = '16'"),
        ("ctrdnn", {"hidden": [4, 0]}, r"hidden\[1\] = 0"),
        ("dlrm", {"dense": 0}, "dense = 0"),
        ("dlrm", {"paper": True}, "paper = True: unknown key"),
        ("2emb", {"slots": 4, "user_slots": 4}, "user_slots is less than slots, 4"),
        ("dcn-v2", {"structure": "serial"}, "structure = 'serial'"),
        ("dcn-v2", {"hidden": []}, "hidden = "),
    ],
)
def test_wrong_arguments_are_explained(name: str, args: dict[str, Any], message: str):
    with pytest.raises(InvalidInput, match=message):
        zoo.build(name, **args)


def test_weights_are_compared_with_bound_tables_only():
    args = {"dim": 2, "slots": 3, "hidden": (4,)}
    with pytest.raises(InvalidInput, match="'embedding' has no table yet"):
        zoo.copy_weights(zoo.build("ctrdnn", **args), zoo.twin("ctrdnn", rows=4, **args))


@pytest.mark.parametrize(("size", "rows"), [(0, 5), (5, 0)])
def test_an_example_has_samples_and_rows(size: int, rows: int):
    with pytest.raises(InvalidInput, match="at least one sample and one row"):
        zoo.example("ctrdnn", size, rows=rows)
