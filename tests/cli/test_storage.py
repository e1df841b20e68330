"""Jobs whose checkpoints lie in storage, in real processes that know the storage of tests."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from tests import bucket
from tests.cli import commands
from tests.cli.jobs import write_job

heterps = partial(commands.heterps, imports=("tests.bucket",))


def test_train_go_on_evaluate_and_export(tmp_path: Path):
    """The last three also on a machine that has nothing but the URL."""
    url = bucket.url(tmp_path / "storage")
    (tmp_path / "here").mkdir()
    write_job(tmp_path / "here" / "click.yaml", checkpoint={"path": url, "every_steps": 5})
    done = heterps("train", "click.yaml", "--set", "train.steps=10", "--quiet", cwd=tmp_path / "here")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "storage" / "latest").read_text() == "step-000000010"
    shutil.copytree(tmp_path / "here", tmp_path / "there", ignore=shutil.ignore_patterns("runs"))
    done = heterps("train", "click.yaml", "--json", cwd=tmp_path / "there")
    result = json.loads(done.stdout)
    assert result["steps"] == 20, done.stderr
    (tmp_path / "bare").mkdir()
    for args, cwd in ((["click"], "there"), ([url], "bare"), ([f"{url}/step-000000020"], "bare")):
        done = heterps("evaluate", *args, "--json", cwd=tmp_path / cwd)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["step"], found["checkpoint"]) == (20, f"{url}/step-000000020")
        assert found["loss"] == pytest.approx(result["eval_loss"], rel=1e-5)
    done = heterps("export", url, "--out", "exported", cwd=tmp_path / "bare")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "bare" / "exported" / "model.safetensors").exists()


def test_what_is_refused(tmp_path: Path):
    url = bucket.url(tmp_path / "storage")
    job = write_job(tmp_path / "click.yaml", checkpoint={"path": url}, train={"steps": 3})
    assert heterps("train", job, "--quiet", cwd=tmp_path).returncode == 0
    for args, message in (
        (("train", job, "--name", "other", "--set", "train.seed=7"), f"{url} holds checkpoints of a job with another"),
        (("train", job, "--no-resume"), f"{url} holds checkpoints of another run"),
        (("train", job, "--name", "x", "--set", "checkpoint.path=nowhere://b/x"), "nowhere://b/x: Protocol not known"),
        (("evaluate", f"{url}/nothing"), f"{url}/nothing: no checkpoint there yet"),
    ):
        done = heterps(*args, cwd=tmp_path)
        assert done.returncode == 2, done
        assert message in done.stderr
        assert "Traceback" not in done.stderr
