"""The job file: what it may say, what is made of it, and how it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import heterps
from heterps.cli.runs import find, run_of_name
from heterps.cli.train import parse_devices
from heterps.errors import InvalidInput
from heterps.job import Job, parse_value, read_data
from tests.cli.jobs import JOB, write_job

DESIGN = """
model: {name: ctrdnn, args: {dim: 16}}
data:  {source: synthetic, rows: 200000}
train: {batch_size: 4096, micro_batches: 4, mode: sync, staleness: 0, epochs: 1, precision: float32, optimizer: adam, lr: 0.001, seed: 0}
eval:  {fraction: 0.1, every_steps: 500}
checkpoint: {path: runs/ctr/checkpoints, every_minutes: 10}
cluster: cluster.yaml
goal:  {min_throughput: 50000}
plan:  {method: auto}
engine: local
"""  # noqa: E501


def module(width: int = 3) -> nn.Module:
    """A model as a user may write it, for `tests.test_job:module`."""
    return Plain(width)


class Plain(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(500, width)
        self.out = nn.Linear(4 * width + 3, 1)

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        return self.out(torch.cat([self.rows(ids).flatten(1), dense], dim=1)).squeeze(1)


def wrong() -> nn.Module:
    raise OSError("no disk")


def test_the_design_s_example() -> None:
    job = Job.parse(DESIGN, source="job.yaml")
    assert (job.train.micro_batches, job.eval.every_steps, job.cluster) == (4, 500, "cluster.yaml")
    settings = job.settings(checkpoints="elsewhere")
    assert (settings.batch_size, settings.epochs, settings.eval_every) == (4096, 1, 500)
    assert settings.checkpoints is not None
    assert (settings.checkpoints.path, settings.checkpoints.every_minutes) == ("runs/ctr/checkpoints", 10)


def test_only_model_and_data_are_needed() -> None:
    job = Job.from_dict({"model": {"name": "dlrm"}, "data": {"source": "synthetic", "rows": 1000}})
    settings = job.settings(checkpoints="here")
    assert (settings.mode, settings.micro_batches, settings.steps, settings.epochs) == ("sync", 1, None, None)
    training, held_out = job.sources()
    assert held_out is not None
    sizes = [sum(len(read.batch["label"]) for read in part.reader(batch_size=100)) for part in (training, held_out)]
    assert sum(sizes) == 1000
    assert 50 < sizes[1] < 150


def test_what_was_run_reads_back_as_it_was(tmp_path: Path) -> None:
    job = Job.load(write_job(tmp_path / "job.yaml", checkpoint={"every_minutes": None}, eval={"fraction": 0}))
    job.save(tmp_path / "again.yaml")
    again = Job.load(tmp_path / "again.yaml")
    assert again == job
    assert again.checkpoint.every_minutes is None
    assert again.sources()[1] is None


def test_empty_sections_are_defaults() -> None:
    job = Job.parse("model: {name: ctrdnn}\ndata: {source: synthetic}\ntrain:\neval:\nplan:\n", source="job.yaml")
    assert job.train.batch_size == 4096


def test_settings_on_the_command_line() -> None:
    job = Job.from_dict(JOB).with_values(
        ["train.lr=1e-2", "train.steps=null", "model.args.hidden=[4, 4]", "train.schedule={name: cosine, steps: 9}",
         "data.id_space=dense", "goal={samples: 5, budget_usd: 2}"],
        source="job.yaml",
    )  # fmt: skip
    assert (job.train.lr, job.train.steps, job.data["id_space"]) == (0.01, None, "dense")
    schedule = job.settings().schedule
    assert schedule is not None
    assert schedule(9) == pytest.approx(0)
    assert [layer.name for layer in job.build(job.sources()[0]).layers] == ["embedding", "fc1", "fc2", "fc3", "loss"]
    with pytest.raises(InvalidInput, match="has no keys"):
        job.with_values(["train.lr.x=1"], source="job.yaml")
    assert parse_value("1e-3") == 0.001


def test_the_seed_decides_weights_and_rows() -> None:
    def first(of_job: int, **args: Any) -> torch.Tensor:
        model = {"name": "ctrdnn", "args": {"slots": 4, "dense": 3, **args}}
        job = Job.from_dict({**JOB, "model": model, "train": {"seed": of_job}})
        chain = job.build(job.sources()[0])
        assert chain.embeddings[0].options["seed"] == args.get("seed", of_job)
        return chain.state_dict()["fc1.module.weight"]

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
    assert torch.equal(first(1, seed=5), first(2, seed=5))


def test_a_function_as_a_model() -> None:
    spec = {"name": "tests.test_job:module", "args": {"width": 2}}
    job = Job.from_dict({**JOB, "model": spec, "data": {**JOB["data"], "id_space": "dense"}})
    source, _ = job.sources()
    chain, again = job.build(source), job.build(source)
    assert [layer.dim for layer in chain.embeddings] == [2]
    for one, other in zip(chain.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"goals": {}}, ["'goals'", "Did you mean 'goal'"]),
        ({"other": 1}, ["other", "the keys here are model, data"]),
        ({"model": {}}, ["model.name is missing"]),
        ({"model": {"name": "ctrdnn", "args": {"dims": 3}}}, ["Did you mean 'dim'"]),
        ({"model": {"name": "no.such:function"}}, ["no.such:function", "package.module:function"]),
        ({"model": {"name": "tests.test_job:nothing"}}, ["has no 'nothing'"]),
        ({"model": {"name": "tests.test_job:DESIGN"}}, ["not a function"]),
        ({"model": {"name": "tests.test_job:wrong"}}, ["OSError: no disk", "test_job.py"]),
        ({"model": {"name": "tests.test_job:write_job", "args": {"path": 1}}}, ["AttributeError"]),
        ({"model": {"name": "builtins:dict"}}, ["must return", "dict"]),
        ({"data": {"rows": 5}}, ["source is one of"]),
        ({"data": {"source": "synthetic", "row": 5}}, ["Did you mean 'rows'"]),
        ({"data": {"source": "synthetic", "rows": "many"}}, ["rows", "'many'"]),
        ({"data": {"source": "synthetic", "rows": 0}}, ["no rows"]),
        ({"data": {"source": "csv", "path": "nowhere/*.csv", "label": "y"}}, ["nowhere/*.csv"]),
        ({"data": [1]}, ["data = [1]"]),
        ({"train": {"steps": 0}}, ["train.steps = 0"]),
        ({"train": {"lr": "fast"}}, ["train.lr = 'fast'"]),
        ({"train": {"mode": "semi"}}, ["train.mode = 'semi'", "'async'"]),
        ({"train": {"staleness": 2}}, ["mode: async"]),
        ({"train": {"precision": "fp8"}}, ["train.precision = 'fp8'"]),
        ({"train": {"optimizer": "adagrat"}}, ["Did you mean 'adagrad'"]),
        ({"train": {"schedule": {"name": "cosin"}}}, ["Did you mean 'cosine'"]),
        ({"train": {"schedule": {"name": "cosine", "steps": "x"}}}, ["schedule"]),
        ({"eval": {"fraction": 1}}, ["eval.fraction = 1"]),
        ({"eval": {"early_stop": {"patience": 2}}}, ["early_stop needs every_steps"]),
        ({"checkpoint": {"keep": 0}}, ["checkpoint.keep = 0"]),
        ({"goal": {"min_throughput": -5}}, ["min_throughput", "-5"]),
        ({"goal": {"samples": 5}}, ["state one goal: min_throughput, or samples with deadline_hours"]),
        ({"plan": {"method": "exct"}}, ["Did you mean 'exact'"]),
        ({"plan": {"method": "rl", "file": "plan.json"}}, ["either method or file"]),
        ({"engine": "spark"}, ["engine", "'local' or 'ray'"]),
        ({"engine": {"name": "ray", "adress": "auto"}}, ["adress", "address"]),
        ({"engine": "spark"}, ["'spark'"]),
        ({"cluster": 3}, ["cluster = 3"]),
        (
            {"cluster": {"types": {"cpu": {"device": "cpu", "price_per_hour": 0}}}},
            ["cluster: types.cpu.price_per_hour"],
        ),
    ],
)
def test_bad_jobs_are_refused_in_one_line(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InvalidInput) as refused:
        prepare({**JOB, **changes})
    message = str(refused.value)
    assert message.startswith("job.yaml: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def prepare(data: dict[str, Any]) -> None:
    """All that is done of a job before training."""
    job = Job.from_dict(data, source="job.yaml")
    source, _ = job.sources()
    job.build(source).check_batch(job.example(source))
    job.settings()


def test_clusters_are_files_mappings_or_names(tmp_path: Path) -> None:
    types = {"types": {"cpu": {"device": "cpu", "price_per_hour": 0.04}}}
    inline = Job.from_dict({**JOB, "cluster": types}).load_cluster()
    assert inline is not None
    inline.save(tmp_path / "cluster.yaml")
    assert Job.from_dict({**JOB, "cluster": str(tmp_path / "cluster.yaml")}).load_cluster() == inline
    named = Job.from_dict({**JOB, "cluster": ["cpu", "h200"]})
    assert Job.parse(named.to_text(), source="job.yaml") == named


def test_another_job_is_no_continuation() -> None:
    job = Job.from_dict(JOB)
    job.check_resumes(job.with_values(["train.lr=5", "train.steps=9"], source="job"), run="a")
    for change in ("model.name=dlrm", "data.rows=5", "eval.fraction=0.2", "train.seed=3"):
        with pytest.raises(InvalidInput, match=f"another {change.partition('=')[0].partition('.')[0]}"):
            job.check_resumes(job.with_values([change], source="job"), run="a")


def test_runs_by_name(tmp_path: Path) -> None:
    assert run_of_name(tmp_path, "a", fresh=True).name == "a"
    (tmp_path / "a").mkdir()
    (tmp_path / "a-2").mkdir()
    assert run_of_name(tmp_path, "a", fresh=False).name == "a"
    assert run_of_name(tmp_path, "a", fresh=True).name == "a-3"
    for name in ("a/b", "latest", ".hidden", ""):
        with pytest.raises(InvalidInput, match="name"):
            run_of_name(tmp_path, name, fresh=False)
    with pytest.raises(InvalidInput, match="no checkpoint"):
        find("a", tmp_path)
    assert parse_devices(["v100=cpu,h200=cuda:1", "tpu=cpu"]) == {"v100": "cpu", "h200": "cuda:1", "tpu": "cpu"}
    with pytest.raises(InvalidInput, match="TYPE=DEVICE"):
        parse_devices(["v100"])


def test_data_given_by_itself(tmp_path: Path) -> None:
    assert read_data("{source: criteo, path: a.tsv}") == {"source": "criteo", "path": "a.tsv"}
    assert isinstance(read_data(str(write_job(tmp_path / "job.yaml"))), Job)
    with pytest.raises(InvalidInput, match=r"nowhere\.yaml"):
        read_data("nowhere.yaml")


def test_the_python_surface() -> None:
    for name in heterps.__all__:
        assert getattr(heterps, name) is not None
    assert heterps.store.SparseTable is not None
    assert heterps.data.Synthetic is not None
