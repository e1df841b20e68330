"""Exports: what is written, and that it scores as the chain does, without heterps' runtime."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from heterps.errors import InvalidInput
from heterps.models import Bags, Batch, BCEWithLogits, Chain, Layer, SparseEmbedding, zoo
from heterps.models.scoring import example_batch, example_tensors, load
from heterps.runtime import train
from heterps.runtime.export import export
from heterps.runtime.tables import bind_tables
from tests.models.batches import batch_of
from tests.models.test_from_module import CASES, arguments, logits_of

SMALL: dict[str, Any] = {"dim": 5, "hidden": (8,), "slots": 3, "dense": 2, "lr": 0.1, "init_scale": 0.3}

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("heterps.runtime", "heterps.ps", "heterps.store", "heterps._native", "heterps.data")):
            raise ImportError(f"{name} is not there")
sys.meta_path.insert(0, Blocked())
from safetensors.torch import load_file, save_file
from heterps.models.scoring import example_batch, load
scores = load(sys.argv[1])(example_batch(load_file(sys.argv[2])))
save_file({"scores": scores}, sys.argv[3])
"""


def batches(count: int, *, rows: int = 40, samples: int = 32) -> list[Batch]:
    names = {name: SMALL[name] for name in ("slots", "dense")}
    return [zoo.example("ctrdnn", samples, rows=rows, seed=seed, **names) for seed in range(count)]


@pytest.fixture(scope="module")
def chain() -> Chain:
    made = zoo.build("ctrdnn", **SMALL)
    train(made, batches(5), optimizer="adam", lr=0.05)
    return made.eval()


@torch.no_grad()
def scores(chain: Chain, batch: Batch) -> torch.Tensor:
    return chain.predict(batch)


def test_scores_are_the_chain_s_own_for_ids_it_never_saw_too(chain: Chain, tmp_path: Path) -> None:
    path = export(chain, tmp_path / "out", model={"name": "ctrdnn", "args": SMALL})
    scorer = load(path)
    assert not any(parameter.requires_grad for parameter in scorer.parameters())
    for batch in (*batches(2), *batches(2, rows=10**9)):
        unlabelled = {name: value for name, value in batch.items() if name != "label"}
        assert torch.equal(scorer(unlabelled), scores(chain, batch))
    negative = {**batches(1)[0], "ids": -torch.arange(96).reshape(32, 3) * 2**56}
    assert torch.equal(scorer(negative), scores(chain, negative))


def test_scoring_needs_neither_runtime_nor_store_nor_native_code(chain: Chain, tmp_path: Path) -> None:
    export(chain, tmp_path / "out", model={"name": "ctrdnn", "args": SMALL})
    batch = batches(1, rows=60)[0]
    save_file(example_tensors(batch), tmp_path / "batch")
    command = [sys.executable, "-c", BLOCKED, *(str(tmp_path / name) for name in ("out", "batch", "scores"))]
    subprocess.run(command, check=True, timeout=300)
    assert torch.equal(load_file(tmp_path / "scores")["scores"], scores(chain, batch))


def test_the_files(chain: Chain, tmp_path: Path) -> None:
    path = export(chain, tmp_path / "out", model="ctrdnn")
    assert load_file(path / "model.safetensors").keys() == chain.state_dict().keys()
    rows = load_file(path / "embeddings.safetensors")
    ids = rows["embedding.ids"]
    assert torch.equal(ids, torch.arange(40))
    assert torch.equal(rows["embedding.rows"], torch.as_tensor(chain.tables["embedding"].pull(ids)))
    parquet = pq.read_table(path / "tables" / "embedding.parquet").sort_by("id")
    assert parquet["id"].to_pylist() == ids.tolist()
    assert torch.equal(torch.tensor(parquet["vector"].to_pylist()), rows["embedding.rows"])
    modes = {file.stat().st_mode for file in path.rglob("*.*")}
    assert modes == {(path / "model.json").stat().st_mode}  # whoever may read one may read all
    described = json.loads((path / "model.json").read_text())
    assert described["format"] == "heterps.export/1"
    assert described["model"] == {"name": "ctrdnn", "args": {}}
    assert described["tables"]["embedding"] == {
        "dim": 5, "seed": 0, "init_scale": 0.3, "unseen": "first_value", "rows": 40, "file": "tables/embedding.parquet",
    }  # fmt: skip


def bags_chain(**options: Any) -> Chain:
    """Bags of two slots, summed and averaged, from one table and another with an odd name."""
    return Chain(
        SparseEmbedding("sums", reads="tags", writes="s", dim=3, pooling="sum", table="a/b", init_scale=1, **options),
        SparseEmbedding("means", reads="tags", writes="m", dim=3, pooling="mean", table="a/b", init_scale=1, **options),
        SparseEmbedding("wide", reads="id", writes="w", dim=1, seed=-4),
        Layer("fc", nn.Linear(13, 1), reads=["s", "m", "w"], writes="logit"),
        Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss"),
    )


def bags_batch(seed: int, *, rows: int = 30, samples: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 9, (2 * samples,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    ids = torch.randint(rows, (int(offsets[-1]),), generator=generator)
    label = torch.randint(2, (samples,), generator=generator).float()
    return {"tags": Bags(ids, offsets, 2), "id": torch.randint(rows, (samples,), generator=generator), "label": label}


@pytest.mark.parametrize("options", [{}, {"admit_after": 3}])
def test_bags_shared_tables_and_late_admission(tmp_path: Path, options: dict[str, Any]) -> None:
    chain = bags_chain(**options)
    train(chain, [bags_batch(seed) for seed in range(4)])
    chain.eval()
    scorer = load(export(chain, tmp_path / "out"), chain=bags_chain(**options))
    for seed in range(3):
        batch = bags_batch(seed, rows=60)
        assert torch.equal(scorer(batch), scores(chain, batch))
    assert (tmp_path / "out" / "tables" / "a%2Fb.parquet").exists()


def test_first_values_of_an_empty_table(tmp_path: Path) -> None:
    for dim in (1, 2, 7):
        chain = zoo.build("ctrdnn", **{**SMALL, "dim": dim, "seed": 2**40 + dim})
        bind_tables(chain)
        args = {**SMALL, "dim": dim, "seed": 2**40 + dim}
        scorer = load(export(chain.eval(), tmp_path / str(dim), model={"name": "ctrdnn", "args": args}))
        batch = batches(1, rows=10**12)[0]
        assert torch.equal(scorer(batch), scores(chain, batch))


@pytest.mark.parametrize("name", zoo.names())
def test_every_model_of_the_zoo(tmp_path: Path, name: str) -> None:
    chain = zoo.build(name)
    train(chain, [zoo.example(name, 8, rows=50)])
    chain.eval()
    scorer = load(export(chain, tmp_path / "out", model=name))
    batch = zoo.example(name, 8, rows=70, seed=1)
    assert torch.equal(scorer(batch), scores(chain, batch))


def test_examples_keep_their_bags(tmp_path: Path) -> None:
    batch = bags_batch(0)
    save_file(example_tensors(batch), tmp_path / "example")
    again = example_batch(load_file(tmp_path / "example"))
    assert again.keys() == batch.keys()
    tags, before = again["tags"], batch["tags"]
    assert isinstance(tags, Bags)
    assert isinstance(before, Bags)
    assert tags.slots == 2
    assert torch.equal(tags.offsets, before.offsets)


def test_shared_weights_are_written(tmp_path: Path) -> None:
    linear = nn.Linear(2, 2)
    made = Chain(
        Layer("one", linear, reads="dense", writes="h"),
        Layer("two", linear, reads="h", writes="h2"),
        Layer("fc", nn.Linear(2, 1), reads="h2", writes="logit"),
        Layer("loss", BCEWithLogits(), reads=["logit", "label"], writes="loss"),
    )
    path = export(made, tmp_path / "out")
    assert load_file(path / "model.safetensors").keys() == made.state_dict().keys()


@pytest.mark.parametrize("name", ["dlrm", "siamese", "bags, mean", "bags with a last offset", "cross", "sequence"])
def test_a_module_takes_its_own_state_dict_back(tmp_path: Path, name: str) -> None:
    """A new module with it scores as the chain does, trained rows included."""
    make, columns, options, _ = CASES[name]
    model = make()
    made = Chain.from_module(model, batch_of(**columns), lr=0.3, **options)
    train(made, [batch_of(seed, **columns) for seed in range(5)], optimizer="sgd", lr=0.1)
    path, batch = export(made, tmp_path / "out"), batch_of(9, **columns)
    for state in (made.module_state_dict(), load_file(path / "module.safetensors")):
        fresh = make()
        fresh.load_state_dict(state)
        with torch.no_grad():
            given = logits_of(fresh.eval()(**arguments(fresh, batch)))
        torch.testing.assert_close(given, scores(made.eval(), batch).view_as(given), rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(state[name], value) for name, value in make().state_dict().items())


def test_a_chain_by_hand_has_no_module(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="was not cut from a module"):
        chain.module_state_dict()
    assert not (export(chain, tmp_path / "out") / "module.safetensors").exists()


def test_what_cannot_be_exported_or_loaded(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="train it first"):
        export(zoo.build("ctrdnn"), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(InvalidInput, match="is no export"):
        export(chain, tmp_path / "mine")
    with pytest.raises(InvalidInput, match="no exported model"):
        load(tmp_path / "mine")
    path = export(chain, tmp_path / "out")
    with pytest.raises(InvalidInput, match="names no model"):
        load(path)
    with pytest.raises(InvalidInput, match="is of layers"):
        load(path, chain=bags_chain())
    with pytest.raises(InvalidInput, match="do not fit"):
        load(path, chain=zoo.build("ctrdnn", **{**SMALL, "hidden": (9,)}))
    (path / "embeddings.safetensors").write_bytes(b"cut")
    with pytest.raises(InvalidInput, match=r"embeddings\.safetensors"):
        load(path, chain=zoo.build("ctrdnn", **SMALL))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["mine", "out"]
