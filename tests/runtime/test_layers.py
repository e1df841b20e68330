"""Chains of every shape, cut anywhere, against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from heterps.errors import InvalidInput
from heterps.models import Bags, Chain, Layer
from heterps.runtime import train
from tests.runtime.chains import DENSE, DIM, IDS, SLOTS, embedding, fc, loss, random_batches, seeded
from tests.runtime.plain import Plain, plain, sgd
from tests.runtime.plans import every_plan, make_plan, shape

BATCHES = random_batches(8)
CASES: dict[str, Callable[[], Chain]] = {}


def case(make: Callable[[], Chain]) -> Callable[[], Chain]:
    CASES[make.__name__] = seeded(make)
    return make


@case
def one_table_for_neighbours() -> Chain:
    return Chain(
        embedding("rows", table="shared"),
        embedding("others", reads="more", table="shared"),
        fc("h", ["rows", "others"], (SLOTS + 2) * DIM, 8),
        fc("logit", "h", 8, 1, relu=False),
        loss(),
    )


@case
def layers_that_work_in_place() -> Chain:
    """Right after rows, and wherever a cut puts one first."""
    return Chain(
        embedding("rows"),
        Layer("positive", nn.ReLU(inplace=True), reads="rows", writes="positive"),
        fc("h", "positive", SLOTS * DIM, 8, relu=False),
        Layer("relu", nn.ReLU(inplace=True), reads="h", writes="relu"),
        fc("logit", "relu", 8, 1, relu=False),
        loss(),
    )


@case
def one_table_at_both_ends() -> Chain:
    """And in the middle: three layers share it."""
    return Chain(
        embedding("rows", table="shared"),
        fc("h", "rows", SLOTS * DIM, 6),
        embedding("others", reads="more", table="shared"),
        fc("g", ["h", "others"], 6 + 2 * DIM, 6),
        embedding("users", reads="user", table="shared"),
        fc("logit", ["g", "users"], 6 + DIM, 1, relu=False),
        loss(),
    )


@case
def bags() -> Chain:
    """Sums of one slot, means of two, some of them empty."""
    return Chain(
        embedding("words_", reads="words", pooling="sum"),
        fc("h", ["words_", "dense"], DIM + DENSE, 6),
        embedding("tags_", reads="tags", pooling="mean"),
        fc("logit", ["h", "tags_"], 6 + 2 * DIM, 1, relu=False),
        loss(),
    )


@case
def bags_and_ids_of_one_table() -> Chain:
    return Chain(
        embedding("tags_", reads="tags", pooling="sum", table="shared"),
        embedding("rows", table="shared"),
        embedding("words_", reads="words", pooling="mean", table="shared"),
        fc("logit", ["tags_", "rows", "words_"], (2 + SLOTS + 1) * DIM, 1, relu=False),
        loss(),
    )


@case
def tensors_that_skip_stages() -> Chain:
    return Chain(
        embedding("rows"),
        fc("a", ["rows", "dense"], SLOTS * DIM + DENSE, 6),
        fc("b", "a", 6, 6),
        fc("c", ["b", "dense"], 6 + DENSE, 6),
        Layer("sum", lambda a, c, rows: a + c + rows.sum((1, 2)).unsqueeze(1), reads=["a", "c", "rows"], writes="sum"),
        fc("logit", ["sum", "b"], 12, 1, relu=False),
        loss(),
    )


@case
def layers_without_parameters() -> Chain:
    return Chain(
        Layer("scaled", lambda dense: dense * 2, reads="dense", writes="scaled"),
        embedding("rows"),
        Layer("flat", nn.Flatten(), reads="rows", writes="flat"),
        Layer("relu", nn.ReLU(), reads="flat", writes="relu"),
        Layer("joined", nn.Identity(), reads=["relu", "scaled"], writes="joined", join=True),
        Layer("logit", lambda joined: joined.sum(1), reads="joined", writes="logit"),
        loss(),
    )


@case
def whole_numbers_cross() -> Chain:
    """int64 and bool tensors that one layer writes and another, in a later stage, reads."""

    def classes(user: Tensor) -> tuple[Tensor, Tensor]:
        return user % 3, user > 20

    def chosen(h: Tensor, number: Tensor, large: Tensor) -> Tensor:
        return torch.where(large, 2.0, 1.0) * h.gather(1, number.unsqueeze(1)).squeeze(1)

    return Chain(
        Layer("classes", classes, reads="user", writes=["class", "large"]),
        embedding("rows"),
        fc("h", "rows", SLOTS * DIM, 3, relu=False),
        fc("g", "h", 3, 3, relu=False),
        Layer("logit", chosen, reads=["g", "class", "large"], writes="logit"),
        loss(),
    )


@case
def tensors_nobody_reads() -> Chain:
    return Chain(
        embedding("rows"),
        Layer("split", lambda rows: (rows[:, :2], rows[:, 2:], rows * 2), reads="rows", writes=["x", "rest", "unused"]),
        fc("aside", "rest", DIM, 3),
        fc("h", "x", 2 * DIM, 6),
        fc("logit", "h", 6, 1, relu=False),
        loss(),
    )


@case
def embeddings_everywhere() -> Chain:
    """Of other widths and optimizers; the first layers read no ids."""
    return Chain(
        fc("h", "dense", DENSE, 6),
        embedding("rows", dim=3),
        fc("g", ["h", "rows"], 6 + SLOTS * 3, 6),
        embedding("users", reads="user", dim=5, optimizer="sgd", keep_shape=True),
        embedding("others", reads="more", dim=2, ids=lambda more: more[:, :1]),
        fc("logit", ["g", "users", "others"], 6 + 5 + 2, 1, relu=False),
        loss(),
    )


@case
def rows_in_the_shape_of_their_ids() -> Chain:
    """[B] ids give [B, dim], not [B, 1, dim]; as in a module with `nn.Embedding`. Bags of one slot too."""

    def product(users: Tensor, h: Tensor, words: Tensor) -> Tensor:
        assert users.shape == h.shape == words.shape
        return (users * h + words).sum(1)

    return Chain(
        embedding("users", reads="user", keep_shape=True),
        embedding("words_", reads="words", pooling="sum", keep_shape=True),
        fc("h", "dense", DENSE, DIM),
        Layer("logit", product, reads=["users", "h", "words_"], writes="logit"),
        loss(),
    )


@case
def frozen_weights() -> Chain:
    chain = Chain(
        embedding("rows"),
        fc("frozen", "rows", SLOTS * DIM, 6),
        fc("h", "frozen", 6, 6),
        fc("logit", "h", 6, 1, relu=False),
        loss(),
    )
    for parameter in chain.layers[1].parameters():
        parameter.requires_grad_(False)
    return chain


@case
def only_rows_learn() -> Chain:
    return Chain(
        embedding("rows"),
        embedding("others", reads="more"),
        Layer("logit", lambda rows, others: rows.sum((1, 2)) * others.sum((1, 2)), reads=["rows", "others"],
              writes="logit"),
        loss(),
    )  # fmt: skip


@case
def no_rows() -> Chain:
    return Chain(fc("h", "dense", DENSE, 6), fc("g", "h", 6, 6), fc("logit", "g", 6, 1, relu=False), loss())


@cache
def expected(name: str) -> Plain:
    return plain(CASES[name], BATCHES, ids=IDS)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_every_cut(name: str, stages: int):
    for number, plan in enumerate(every_plan(CASES[name](), stages=stages)):
        micro_batches = (3, 1)[number % 2]
        chain = CASES[name]()
        result = train(chain, BATCHES, plan, micro_batches=micro_batches, optimizer=sgd)
        expected(name).assert_same(chain, result.losses, what=f"{shape(plan)}, {micro_batches} micro-batches:")


def test_bags_are_those_of_embedding_bag():
    """Against a module with `nn.EmbeddingBag`, and not by way of the chain."""

    class Module(nn.Module):
        def __init__(self, mode: str, rows: Tensor, linear: nn.Linear) -> None:
            super().__init__()
            self.bag = nn.EmbeddingBag.from_pretrained(rows.clone(), freeze=False, mode=mode)
            self.linear = linear

        def forward(self, tags: Bags) -> Tensor:
            pooled = self.bag(tags.ids, tags.offsets[:-1])
            return self.linear(pooled.view(len(tags), -1)).squeeze(1)

    for mode in ("sum", "mean"):
        make = seeded(
            lambda mode=mode: Chain(
                embedding("tags_", reads="tags", pooling=mode, optimizer="sgd"),
                fc("logit", "tags_", 2 * DIM, 1, relu=False),
                loss(),
            )
        )
        start = make()
        train(start, BATCHES[:1], optimizer=lambda p: torch.optim.SGD(p, lr=0.0), lr=0.0, schedule=lambda _: 0.0)
        rows = start.tables["tags_"].pull(torch.arange(IDS), create=False)
        module = Module(mode, rows, start.layers[1].module)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        losses = []
        for batch in BATCHES:
            value = functional.binary_cross_entropy_with_logits(module(batch["tags"]), batch["label"])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            losses.append(value.item())
        chain = make()
        plan = make_plan(chain, (1,))
        result = train(chain, BATCHES, plan, micro_batches=3, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        torch.testing.assert_close(torch.tensor(result.losses), torch.tensor(losses), rtol=1e-5, atol=1e-6)
        trained = chain.tables["tags_"].pull(torch.arange(IDS), create=False)
        torch.testing.assert_close(trained, module.bag.weight.detach(), rtol=1e-4, atol=1e-6)


class Ordinary(nn.Module):
    """A module as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(IDS, DIM)
        self.bag = nn.EmbeddingBag(IDS, DIM, mode="sum")
        self.fc1 = nn.Linear((SLOTS + 1) * DIM + DENSE, 8)
        self.fc2 = nn.Linear(8, 1)

    def forward(self, ids: Tensor, words: Tensor, words_offsets: Tensor, dense: Tensor) -> Tensor:
        x = torch.cat([self.emb(ids).flatten(1), self.bag(words, words_offsets), dense], dim=1)
        return self.fc2(torch.relu(self.fc1(x))).squeeze(1)


def test_an_ordinary_module_trains_the_same_as_a_chain():
    torch.manual_seed(0)
    module = Ordinary()
    names = ("ids", "words", "dense", "label")
    batches = [{name: batch[name] for name in names} for batch in BATCHES]
    chains = [
        Chain.from_module(module, batches[0], optimizer="sgd", lr=0.1) for _ in range(3)
    ]  # before it is trained; they copy nothing dense, so only one of them is trained with this module's weights
    state = {name: value.clone() for name, value in module.state_dict().items()}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    losses = []
    for batch in batches:
        words = batch["words"]
        score = module(batch["ids"], words.ids, words.offsets[:-1], batch["dense"])
        value = functional.binary_cross_entropy_with_logits(score, batch["label"])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    after = {name: value.clone() for name, value in module.state_dict().items()}
    for chain, stages in zip(chains, (1, 2, 3), strict=True):
        module.load_state_dict(state)  # the chain's dense weights are the module's own
        plan = every_plan(chain, stages=stages)[-1]
        result = train(chain, batches, plan, micro_batches=3, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        torch.testing.assert_close(torch.tensor(result.losses), torch.tensor(losses), rtol=1e-4, atol=1e-6)
        for name in ("fc1.weight", "fc2.weight", "fc2.bias"):
            torch.testing.assert_close(module.state_dict()[name], after[name], rtol=1e-4, atol=1e-6)
        tables = list(chain.tables.values())
        for table, name in zip(tables, ("emb.weight", "bag.weight"), strict=True):
            rows = table.pull(torch.arange(IDS), create=False)
            torch.testing.assert_close(rows, after[name], rtol=1e-4, atol=1e-6)


def tied() -> Chain:
    """Two layers of one weight."""
    torch.manual_seed(0)
    linear = nn.Linear(6, 6)
    return Chain(
        fc("first", "dense", DENSE, 6),
        Layer("h", linear, reads="first", writes="h"),
        Layer("g", linear, reads="h", writes="g"),
        fc("logit", "g", 6, 1, relu=False),
        loss(),
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_layers_of_one_stage_may_share_a_weight(clip_norm: float | None):
    expected = plain(tied, BATCHES, ids=IDS, clip_norm=clip_norm)
    for cuts in ((), (1,), (1, 3)):
        chain = tied()
        result = train(chain, BATCHES, make_plan(chain, cuts), micro_batches=2, optimizer=sgd, clip_norm=clip_norm)
        expected.assert_same(chain, result.losses, what=str(cuts))


def test_layers_of_two_stages_may_not_share_a_weight():
    chain = tied()
    with pytest.raises(InvalidInput, match=r"'h' and 'g' share a parameter.*same type"):
        train(chain, BATCHES, make_plan(chain, (2,)))


def test_layers_that_share_a_table_agree_on_its_options():
    chain = Chain(
        embedding("rows", table="shared"),
        embedding("others", reads="more", table="shared", lr=0.5),
        fc("logit", ["rows", "others"], (SLOTS + 2) * DIM, 1, relu=False),
        loss(),
    )
    with pytest.raises(InvalidInput, match="'shared' differ in its options"):
        train(chain, BATCHES)
