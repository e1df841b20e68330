"""Any plan on any number of replicas and shards gives the losses and weights of plain PyTorch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heterps.data import Csv
from heterps.models import Chain, Layer
from heterps.ps.shards import batch_of
from heterps.runtime import train
from heterps.runtime.cluster.share import share_of
from heterps.runtime.schedules import warmup
from tests.cluster.inprocess import run_here
from tests.runtime.chains import DENSE, DIM, IDS, SLOTS, embedding, fc, loss, random_batches, seeded, small
from tests.runtime.plain import plain, sgd
from tests.runtime.plans import make_plan, shape
from tests.runtime.reference import MODELS, STEPS, assert_same, batches, build, dense_optimizer


def drawn(name: str) -> dict[str, Any]:
    """Cuts, replicas, shards and micro-batches."""
    rng = random.Random(f"cluster {name}")
    layers = len(build(name).layers)
    stages = rng.randint(1, 3)
    cuts = sorted(rng.sample(range(1, layers), stages - 1))
    replicas = [rng.randint(1, 3) for _ in range(stages)]
    plan = make_plan(layers, cuts, units=replicas)
    return {"plan": plan, "replicas": replicas, "shards": rng.randint(1, 2), "micro_batches": rng.choice((2, 3, 4, 5))}


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_gives_what_plain_pytorch_gives(name: str, tmp_path: Path):
    """One of the batches has two samples, and some plans three replicas."""
    options = drawn(name)
    chain, losses, _ = run_here(
        lambda: build(name), batches(name), steps=STEPS, path=tmp_path, optimizer=dense_optimizer, **options
    )
    assert_same(name, chain, losses)


def test_a_run_is_the_same_each_time(tmp_path: Path):
    """To the bit: what a restart gives must be what it would have been."""
    found = [
        run_here(
            lambda: build("ctrdnn"), batches("ctrdnn"), make_plan(5, (2,), units=[2, 1]), steps=STEPS, micro_batches=3,
            shards=2, replicas=[2, 1], path=tmp_path / str(number), optimizer=dense_optimizer,
        )[1]
        for number in range(5)
    ]  # fmt: skip
    assert all(losses == found[0] for losses in found)


def test_the_plans_differ():
    options = [drawn(name) for name in MODELS]
    assert {len(one["plan"].stages) for one in options} == {1, 2, 3}
    assert {count for one in options for count in one["replicas"]} == {1, 2, 3}
    assert len({shape(one["plan"]) for one in options}) == len(MODELS)


@seeded
def sharing() -> Chain:
    """Layers of two stages share a table; one pools bags. Two pushes are far from one, by a small accumulator."""
    options: Any = {"table": "shared", "initial_accumulator": 0.001}
    return Chain(
        embedding("rows", **options),
        fc("fc1", ["rows", "dense"], SLOTS * DIM + DENSE, 8),
        embedding("tags_", reads="tags", pooling="mean", **options),
        fc("logit", ["fc1", "tags_"], 8 + 2 * DIM, 1, relu=False),
        loss(),
    )


@pytest.mark.parametrize("replicas", [[1, 1], [2, 3]], ids=str)
def test_layers_of_two_stages_share_a_table(replicas: list[int], tmp_path: Path):
    data = random_batches(12)
    chain, losses, _ = run_here(
        sharing, data, make_plan(5, (2,), units=replicas), steps=12, micro_batches=4, shards=2, replicas=replicas,
        path=tmp_path, optimizer=sgd,
    )  # fmt: skip
    plain(sharing, data, ids=IDS, optimizer=sgd).assert_same(chain, losses)


@pytest.mark.parametrize(("shards", "share"), [(1, True), (2, True), (1, False)])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_ids_that_hardly_repeat(shards: int, share: bool, mode: str, tmp_path: Path):
    """They cross as they are, and rows are read in place; the rows that replicas have in common are updated once."""
    ids = 60_000
    data = random_batches(8, size=2400, ids=ids)
    assert all(batch_of(batch["ids"].reshape(-1)[:3600].numpy(), 1).number is None for batch in data)
    options: Any = {"optimizer": sgd, "mode": mode, **({"staleness": 1} if mode == "async" else {})}
    chain, losses, _ = run_here(
        small, data, make_plan(5, units=2), steps=8, micro_batches=2, shards=shards, replicas=2, path=tmp_path,
        share=share, **options,
    )  # fmt: skip
    expected = plain(small, data, ids=ids, optimizer=sgd)
    if mode == "sync":
        expected.assert_same(chain, losses)
    else:  # updates come late
        assert losses == pytest.approx(expected.losses, rel=0.02)


def test_clipping_and_schedules(tmp_path: Path):
    options: Any = {"clip_norm": 0.05, "schedule": warmup(6)}
    data = random_batches(10)
    chain, losses, _ = run_here(
        small, data, make_plan(5, (1, 3), units=[2, 1, 2]), steps=10, micro_batches=3, shards=1, replicas=[2, 1, 2],
        path=tmp_path, optimizer=sgd, **options,
    )  # fmt: skip
    plain(small, data, ids=IDS, optimizer=sgd, **options).assert_same(chain, losses)


@seeded
def with_an_unused_weight() -> Chain:
    """A parameter without a gradient must stay as it is, though its optimizer would decay it."""

    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(SLOTS * DIM, 1), nn.Parameter(torch.ones(3))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            given: torch.Tensor = self.used(rows.flatten(1))
            return given

    return Chain(embedding("rows"), Layer("logit", Spare(), reads="rows", writes="logit"), loss())


def decaying(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1)


def test_a_weight_without_a_gradient_stays(tmp_path: Path):
    data = random_batches(3)
    chain, losses, _ = run_here(
        with_an_unused_weight, data, make_plan(3, units=2), steps=3, micro_batches=2, shards=1, replicas=2,
        path=tmp_path, optimizer=decaying,
    )  # fmt: skip
    assert torch.equal(chain.state_dict()["logit.module.spare"], torch.ones(3))
    plain(with_an_unused_weight, data, ids=IDS, optimizer=decaying).assert_same(chain, losses)


@seeded
def with_buffers() -> Chain:
    return Chain(
        embedding("rows"),
        fc("fc1", ["rows", "dense"], SLOTS * DIM + DENSE, 8),
        Layer("norm", nn.BatchNorm1d(8), reads="fc1", writes="norm"),
        fc("logit", "norm", 8, 1, relu=False),
        loss(),
    )


@pytest.mark.parametrize("replicas", [[2, 1], [1, 2]], ids=str)
def test_buffers_are_those_of_the_first_replica(replicas: list[int], tmp_path: Path):
    """Weights are engine local's with any replicas; buffers with one of their stage, else they saw its share."""
    data, count = random_batches(6), "norm.module.num_batches_tracked"
    local = with_buffers()
    train(local, data, make_plan(5, (2,)), steps=6, micro_batches=4, optimizer=sgd)
    chain, _, _ = run_here(
        with_buffers, data, make_plan(5, (2,), units=replicas), steps=6, micro_batches=4, shards=1, replicas=replicas,
        path=tmp_path, optimizer=sgd,
    )  # fmt: skip
    found, expected = chain.state_dict(), local.state_dict()
    assert int(expected[count]) == 24
    assert int(found[count]) == 24 // replicas[1]
    same = expected if replicas[1] == 1 else dict(local.named_parameters())
    for name in same:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-6)


def test_narrow_activations_are_near(tmp_path: Path):
    data = random_batches(10)
    options: Any = {"steps": 10, "micro_batches": 2, "shards": 1, "replicas": 1, "optimizer": sgd}
    plan = make_plan(5, (2,))
    _, wide, _ = run_here(small, data, plan, path=tmp_path / "wide", share=False, **options)
    _, narrow, _ = run_here(small, data, plan, path=tmp_path / "narrow", narrow=True, share=False, **options)
    assert wide != narrow
    torch.testing.assert_close(torch.tensor(narrow), torch.tensor(wide), rtol=0.02, atol=0.02)


def test_counts_are_those_of_engine_local(tmp_path: Path):
    """Samples, and the AUC over the run's own scores."""
    data = random_batches(8)
    chain = small()
    local = train(chain, data, make_plan(5, (2,)), steps=8, optimizer=sgd)
    _, losses, done = run_here(
        small, data, make_plan(5, (2,), units=2), steps=8, micro_batches=2, shards=1, replicas=2, path=tmp_path,
        optimizer=sgd,
    )  # fmt: skip
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(local.losses), rtol=1e-4, atol=1e-6)
    assert {progress.samples for progress in done} == {local.samples}
    scored = [progress.auc for progress in done if progress.auc is not None]
    assert sum(sum(one["negatives"]) + sum(one["positives"]) for one in scored) == local.samples


def test_shares_are_all_samples_once():
    (batch,) = random_batches(1, size=11)
    for micro_batches, replicas in [(1, 1), (4, 3), (11, 2), (20, 5), (2, 4)]:
        shares = [
            share_of(0, batch, ("ids", "tags"), micro_batches=micro_batches, replica=replica, replicas=replicas)
            for replica in range(replicas)
        ]
        assert sum(share.bounds[-1] for share in shares) == 11
        numbers = sorted(number for share in shares for number in share.numbers)
        assert numbers == list(range(min(micro_batches, 11)))
        found = torch.cat([share.whole["ids"] for share in shares])  # type: ignore[arg-type]
        assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, batch["ids"].tolist()))  # type: ignore[union-attr]
        assert all(len(share.whole["tags"]) == share.bounds[-1] for share in shares)


@pytest.mark.parametrize("sums", ["mail", "gloo"])
@pytest.mark.parametrize("share", [True, False], ids=["shared memory", "sockets"])
def test_however_replicas_talk(share: bool, sums: str, tmp_path: Path):
    """Tensors large enough for shared memory; three replicas add up their gradients."""
    data = random_batches(6, size=700)
    chain, losses, _ = run_here(
        small, data, make_plan(5, (2,), units=[3, 2]), steps=6, micro_batches=3, shards=1, replicas=[3, 2],
        path=tmp_path, optimizer=sgd, share=share, sums=sums,
    )  # fmt: skip
    plain(small, data, ids=IDS, optimizer=sgd).assert_same(chain, losses)


def test_async_without_staleness_is_sync(tmp_path: Path):
    data = random_batches(10)
    options: Any = {
        "steps": 10, "micro_batches": 2, "shards": 1, "replicas": [2, 1], "optimizer": sgd,
        "plan": make_plan(5, (2,), units=[2, 1]),
    }  # fmt: skip
    _, sync, _ = run_here(small, data, path=tmp_path / "sync", **options)
    _, also, _ = run_here(small, data, path=tmp_path / "async", mode="async", staleness=0, **options)
    assert sync == also


def test_async_trains_on_every_sample_once(tmp_path: Path):
    """Stages run ahead of each other: the first losses are those of sync training, the later ones are near."""
    data = random_batches(40)
    options: Any = {
        "steps": 40, "micro_batches": 2, "shards": 1, "replicas": [2, 1], "optimizer": sgd,
        "plan": make_plan(5, (2,), units=[2, 1]),
    }  # fmt: skip
    _, sync, _ = run_here(small, data, path=tmp_path / "sync", **options)
    _, ahead, done = run_here(small, data, path=tmp_path / "async", mode="async", staleness=2, **options)
    assert {progress.samples for progress in done} == {sum(len(batch["label"]) for batch in data)}
    assert ahead[0] == sync[0]
    assert ahead != sync
    torch.testing.assert_close(torch.tensor(ahead), torch.tensor(sync), rtol=0.1, atol=0.05)


def test_files_are_read_together(tmp_path: Path):
    """Each replica decodes its share of the parts; the losses are those of engine local, resumed halfway too."""
    generator = random.Random(0)
    for number in range(3):
        lines = [
            ",".join([str(generator.randint(0, 1)), *(f"{generator.gauss(0, 1):.3f}" for _ in range(DENSE)),
                      *(f"c{generator.randint(0, 20)}" for _ in range(SLOTS))])
            for _ in range(70)
        ]  # fmt: skip
        dense, sparse = [f"d{k}" for k in range(DENSE)], [f"s{k}" for k in range(SLOTS)]
        header = ",".join(["label", *dense, *sparse])
        (tmp_path / f"clicks-{number}.csv").write_text("\n".join([header, *lines, ""]))
    data = Csv(str(tmp_path / "clicks-*.csv"), label="label", dense=dense, sparse=sparse)
    local = train(small(), data, make_plan(5, (2,)), epochs=2, batch_size=16, optimizer=sgd)
    steps = len(local.losses)
    _, losses, done = run_here(
        small, data, make_plan(5, (2,), units=[2, 1]), steps=steps, micro_batches=2, shards=1, replicas=[2, 1],
        path=tmp_path, optimizer=sgd, batch_size=16, epochs=2,
    )  # fmt: skip
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(local.losses), rtol=1e-4, atol=1e-6)
    assert {progress.samples for progress in done} == {local.samples}
