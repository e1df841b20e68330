"""Training from a job file, as a user does it: real processes, their files, their ends."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heterps.models.scoring import load
from heterps.telemetry import read_jsonl
from tests.cli.commands import command, environment, heterps, refused
from tests.cli.jobs import assert_same_weights, trained, two_stage_plan, weights, write_job

LIMIT_S = 150.0


def write_long(path: Path, steps: int = 100_000) -> Path:
    """A job with many checkpoints. Until it is broken off it has so many steps that it never ends before."""
    return write_job(path, train={"steps": steps, "batch_size": 32}, checkpoint={"every_steps": 7})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of a run that is through, with all that can be written."""
    place = tmp_path_factory.mktemp("finished")
    write_job(place / "click.yaml", eval={"every_steps": 10})
    done = heterps("train", "click.yaml", "--trace", "--tensorboard", cwd=place, fresh=True)
    assert done.returncode == 0, done.stderr
    for word in ("20 steps", "samples/s", "loss", "held-out AUC", "busy", "runs/click", "result.json"):
        assert word in done.stdout
    assert "step 20/20" in done.stderr
    return place


def test_a_run_leaves_its_files(finished: Path) -> None:
    run = finished / "runs" / "click"
    assert (finished / "runs" / "latest").resolve() == run.resolve()
    assert {path.name for path in run.iterdir()} - {".lock"} == {
        "job.yaml", "result.json", "telemetry.jsonl", "trace.json", "tensorboard", "checkpoints", "environment.json",
    }  # fmt: skip
    records = list(read_jsonl(run / "telemetry.jsonl"))
    names = {record["name"] for record in records}
    assert {"forward", "loss", "auc", "eval/auc", "evaluation", "checkpoint", "end"} <= names
    assert [record["fields"]["step"] for record in records if record["name"] == "evaluation"] == [10, 20]
    tracks = [event for event in json.loads((run / "trace.json").read_text()) if event["name"] == "thread_name"]
    assert any("cpu × " in track["args"]["name"] for track in tracks)
    assert list((run / "tensorboard").iterdir())


def test_the_result_is_that_of_the_design(finished: Path) -> None:
    result = json.loads((finished / "runs" / "click" / "result.json").read_text())
    assert result["format"] == "heterps.result/1"
    assert (result["steps"], result["samples"], result["stopped"]) == (20, 20 * 64, "done")
    assert 0 < result["loss"] < 1
    assert 0.4 < result["auc"] < 1
    assert result["predicted"].keys() == result["measured"].keys() == {"throughput", "usd_per_million_samples"}
    assert result["measured"]["throughput"] > 0
    (stage,) = result["stages"]
    assert stage.keys() == {"type", "units", "predicted_s", "measured_s", "busy"}
    assert stage["measured_s"] > 0
    assert 0 < stage["busy"] <= 1


def test_evaluate_gives_the_run_s_own_numbers(finished: Path) -> None:
    result = json.loads((finished / "runs" / "click" / "result.json").read_text())
    for args, fresh in ((["click"], True), (["runs/click/checkpoints", "--data", "click.yaml"], False)):
        done = heterps("evaluate", *args, "--json", cwd=finished, fresh=fresh)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["step"] == 20
        assert found["loss"] == pytest.approx(result["eval_loss"], rel=1e-5)
        assert found["auc"] == pytest.approx(result["auc"], abs=1e-6)


def test_evaluate_on_other_data(finished: Path) -> None:
    other = "{source: synthetic, rows: 300, ids: 500, slots: 4, dense: 3}"
    done = heterps("evaluate", "click", "--data", other, cwd=finished)
    assert "step 20 · 300 samples · loss 0." in done.stdout, done
    assert "nowhere" in refused("evaluate", "nowhere", cwd=finished)


def test_an_export_scores_as_the_run_does(finished: Path) -> None:
    done = heterps("export", "click", "--out", "exported", cwd=finished, fresh=True)
    assert done.returncode == 0, done.stderr
    chain, job = trained(finished / "runs" / "click")
    chain.eval()
    scorer = load(finished / "exported")
    held_out = job.sources()[1]
    assert held_out is not None
    with held_out.reader(batch_size=100) as reader, torch.no_grad():
        for read in reader:
            assert torch.equal(scorer(read.batch), chain.predict(read.batch))
    assert heterps("export", "click", "--out", "exported", cwd=finished).returncode == 0  # replaces its own
    assert "no export" in refused("export", "click", "--out", "runs", cwd=finished)


def test_a_complete_run_is_left_as_it_is(finished: Path) -> None:
    before = (finished / "runs" / "click" / "result.json").read_text()
    done = heterps("train", "click.yaml", cwd=finished)
    assert done.returncode == 0, done.stderr
    assert "nothing is left to do after 20 steps" in done.stdout
    assert (finished / "runs" / "click" / "result.json").read_text() == before


def test_a_fresh_run_beside_it(finished: Path) -> None:
    done = heterps("train", "click.yaml", "--no-resume", "--quiet", cwd=finished)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (finished / "runs" / "latest").resolve().name == "click-2"
    runs = finished / "runs"
    assert_same_weights(weights(runs / "click"), weights(runs / "click-2"))


def test_a_finished_run_can_be_made_longer(tmp_path: Path) -> None:
    write_job(tmp_path / "job.yaml")
    assert heterps("train", "job.yaml", "--quiet", "--name", "a", cwd=tmp_path).returncode == 0
    longer = ("train", "job.yaml", "--set", "train.steps=30", "--set", "checkpoint.every_minutes=null", "--json")
    results = [json.loads(heterps(*longer, "--name", name, cwd=tmp_path).stdout) for name in ("a", "b")]
    assert [result["steps"] for result in results] == [30, 30]
    assert results[0]["loss"] == results[1]["loss"]
    assert_same_weights(weights(tmp_path / "runs" / "a"), weights(tmp_path / "runs" / "b"))
    assert "every_minutes: null" in (tmp_path / "runs" / "a" / "job.yaml").read_text()


def test_another_job_does_not_go_on_with_a_run(finished: Path) -> None:
    message = refused("train", "click.yaml", "--set", "model.args.dim=8", "--quiet", cwd=finished)
    assert "another model" in message
    assert "--no-resume" in message


@pytest.mark.parametrize("attempt", [0, pytest.param(1, marks=pytest.mark.soak)])
def test_a_killed_run_ends_as_an_unbroken_one(tmp_path: Path, attempt: int) -> None:
    write_long(tmp_path / "job.yaml")
    latest = tmp_path / "runs" / "broken" / "checkpoints" / "latest"
    chance = random.Random(attempt)
    step, moment = chance.randrange(300), chance.uniform(0, 0.02)
    with start(tmp_path, "--name", "broken") as process:
        until(lambda: latest.exists() and int(latest.read_text().removeprefix("step-")) >= step, process)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=moment)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "runs" / "broken" / "result.json").exists()
    assert_ends_as_unbroken(tmp_path)


def test_an_interrupted_run_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    write_long(tmp_path / "job.yaml")
    latest = tmp_path / "runs" / "broken" / "checkpoints" / "latest"
    with start(tmp_path, "--name", "broken", "--set", "checkpoint.keep=1") as process:
        until(latest.exists, process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    line = next(line for line in errors.splitlines() if "interrupted" in line)
    assert line.endswith("go on with: heterps train job.yaml --name broken --set checkpoint.keep=1")
    result = json.loads((tmp_path / "runs" / "broken" / "result.json").read_text())
    assert result["stopped"] == "interrupted"
    assert f"at step {result['steps']};" in line
    assert latest.read_text() == f"step-{result['steps']:09d}"
    assert_ends_as_unbroken(tmp_path)


def assert_ends_as_unbroken(place: Path) -> None:
    """With some more steps than it had when it was broken off, which on a machine that stalls may be many."""
    latest = (place / "runs" / "broken" / "checkpoints" / "latest").read_text()
    steps = max(400, int(latest.removeprefix("step-")) + 100)
    write_long(place / "job.yaml", steps)
    for name in ("broken", "unbroken"):
        done = heterps("train", "job.yaml", "--quiet", "--name", name, cwd=place)
        assert done.returncode == 0, done.stderr
    runs = place / "runs"
    results = [json.loads((runs / name / "result.json").read_text()) for name in ("broken", "unbroken")]
    assert [result["steps"] for result in results] == [steps, steps]
    assert results[0]["auc"] == results[1]["auc"]
    assert_same_weights(weights(runs / "broken"), weights(runs / "unbroken"))


def start(place: Path, *args: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command("train", "job.yaml", *args), cwd=place, stdout=pipe, stderr=pipe, text=True, env=environment()
    )


def until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Waits for something that the process does."""
    deadline = time.monotonic() + LIMIT_S
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_one_run_is_trained_by_one_process(tmp_path: Path) -> None:
    write_job(tmp_path / "job.yaml", train={"steps": 100_000}, checkpoint={"every_steps": 7})
    with start(tmp_path) as process:
        until((tmp_path / "runs" / "job" / "checkpoints" / "latest").exists, process)
        assert "another process" in refused("train", "job.yaml", "--quiet", cwd=tmp_path)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130


def test_by_a_plan(tmp_path: Path) -> None:
    write_job(tmp_path / "job.yaml", train={"micro_batches": 2})
    two_stage_plan(tmp_path / "plan.json")
    done = heterps("train", "job.yaml", "--plan", "plan.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ctrdnn on cpu × 2 → fast × 1" in done.stderr
    run = tmp_path / "runs" / "job"
    assert (run / "plan.json").read_text() == (tmp_path / "plan.json").read_text()
    result = json.loads((run / "result.json").read_text())
    assert [(stage["type"], stage["units"]) for stage in result["stages"]] == [("cpu", 2), ("fast", 1)]
    assert result["predicted"] == {"throughput": 1000.0, "usd_per_million_samples": 1.0}
    cost = 3.6 / 3600 / result["measured"]["throughput"] * 1e6
    assert result["measured"]["usd_per_million_samples"] == pytest.approx(cost)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_plan_for_other_hardware(tmp_path: Path) -> None:
    write_job(tmp_path / "job.yaml")
    two_stage_plan(tmp_path / "plan.json", device="cuda")
    args = ("train", "job.yaml", "--plan", "plan.json")
    assert "fast=cpu" in refused(*args, code=3, cwd=tmp_path)
    assert not (tmp_path / "runs").exists()
    by_job = ("train", "job.yaml", "--set", "plan.file=plan.json", "--devices", "fast=cpu")
    assert "fast × 1" in heterps(*by_job, cwd=tmp_path).stderr


def test_a_model_of_one_s_own(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self, width):\n"
        "        super().__init__()\n"
        "        self.rows, self.out = nn.Embedding(500, 4), nn.Sequential(nn.Linear(19, width), nn.Linear(width, 1))\n"
        "    def forward(self, ids, dense):\n"
        "        return self.out(torch.cat([self.rows(ids).flatten(1), dense], dim=1)).squeeze(1)\n"
        "def make(width):\n"
        "    return Net(width)\n"
        "def fail():\n"
        "    return 1 / 0\n"
    )
    job = write_job(tmp_path / "job.yaml", data={"id_space": "dense"})
    model = 'model={"name": "mine:make", "args": {"width": 5}}'
    done = heterps("train", "job.yaml", "--set", model, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert heterps("export", "job", "--out", "out", cwd=tmp_path).returncode == 0
    score = (
        "from heterps.models.scoring import *; scorer = load('out')\n"
        "print(scorer(example_batch(load_file('out/example.safetensors'))).shape)"
    )
    shown = subprocess.run([*command()[:1], "-c", score], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "[8]" in shown.stdout, shown.stderr
    failing = refused("train", job, "--set", 'model={"name": "mine:fail"}', "--quiet", cwd=tmp_path)
    assert "ZeroDivisionError" in failing
    assert "mine.py:12" in failing


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.micro_batch=2", ["train", "Did you mean 'micro_batches'"]),
        ("model.name=ctrdn", ["unknown model 'ctrdn'", "Did you mean 'ctrdnn'"]),
        ("data.source=synthetics", ["Did you mean 'synthetic'"]),
        ("train.batch_size=big", ["train.batch_size", "'big'"]),
        ("train.optimizer=adm", ["Did you mean 'adam'"]),
        ("cluster=nowhere.yaml", ["nowhere.yaml"]),
        ("model={name: matchnet}", ["'query'"]),
    ],
)
def test_bad_jobs_are_refused_in_one_line(tmp_path: Path, change: str, words: list[str]) -> None:
    write_job(tmp_path / "job.yaml")
    message = refused("train", "job.yaml", "--set", change, cwd=tmp_path)
    assert len(message.splitlines()) == 1
    for word in words:
        assert word in message, message
    assert not (tmp_path / "runs").exists()


def test_bad_files_and_names(tmp_path: Path) -> None:
    assert "nowhere.yaml" in refused("train", "nowhere.yaml", cwd=tmp_path)
    (tmp_path / "job.yaml").write_text("model: [")
    assert "not valid YAML" in refused("train", "job.yaml", cwd=tmp_path)
    write_job(tmp_path / "job.yaml")
    assert "name" in refused("train", "job.yaml", "--name", "latest", cwd=tmp_path)


def test_the_example_job_runs(tmp_path: Path) -> None:
    job = Path(__file__).parents[2] / "examples" / "job.yaml"
    small = ("--set", "data.rows=2000", "--set", "train.batch_size=500", "--quiet")
    assert heterps("train", job, *small, cwd=tmp_path).returncode == 0


def test_a_failing_run_says_why_in_one_line(tmp_path: Path) -> None:
    write_job(tmp_path / "job.yaml", train={"lr": 1e30, "optimizer": "sgd"})
    message = refused("train", "job.yaml", "--quiet", code=1, cwd=tmp_path)
    assert "the loss of step" in message
    assert len(message.splitlines()) == 1
    write_job(tmp_path / "job.yaml", model={"args": {"slots": 5}})
    message = refused("train", "job.yaml", "--quiet", "--name", "wide", code=2, cwd=tmp_path)
    assert "made for 5 slots and 13 numbers, the data has 4 and 3: set model args {slots: 4, dense: 3}" in message
    assert len(message.splitlines()) == 1


def test_init_writes_a_job_that_runs(tmp_path: Path) -> None:
    assert heterps("init", "--model", "deepfm", cwd=tmp_path, fresh=True).returncode == 0
    small = ("--set", "data.rows=2000", "--set", "train.batch_size=500", "--set", "model.args.dim=2")
    done = heterps("train", "job.yaml", *small, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "4 steps" in done.stdout
    assert "--force" in refused("init", cwd=tmp_path)
    assert heterps("init", "--force", "--data", "csv", cwd=tmp_path).returncode == 0
    (tmp_path / "data").mkdir()
    rows = "".join(f"{i % 2},{i},u{i % 7},{i % 5}\n" for i in range(100))
    (tmp_path / "data" / "a.csv").write_text("label,price,user,item\n" + rows)
    assert heterps("train", "job.yaml", "--name", "csv", cwd=tmp_path).returncode == 0
    assert "Did you mean 'ctrdnn'" in refused("init", "b.yaml", "--model", "ctrdn", cwd=tmp_path)
    assert "Did you mean 'criteo'" in refused("init", "b.yaml", "--data", "criteos", cwd=tmp_path)
