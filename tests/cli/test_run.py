"""The whole way of a job by one command, in real processes: profile, plan, train, report, calibrate."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from heterps import catalog as catalogs
from heterps.cli.calibrate import load_planned
from heterps.cli.drift import watch_drift
from heterps.job import Job
from heterps.plan import Cluster, Plan, Profile
from heterps.profile.calibrate import LARGEST
from heterps.profile.measurement import Measurement
from heterps.telemetry import JsonLines, Recorder, read_jsonl
from tests.cli.commands import heterps, refused
from tests.cli.jobs import write_job

RENT = {"cluster": ["cpu:480", "h200:8"], "goal": {"min_throughput": 100_000}}


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache of measurements of its own."""
    before = os.environ.get("HETERPS_CACHE")
    os.environ["HETERPS_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["HETERPS_CACHE"]
    else:
        os.environ["HETERPS_CACHE"] = before


def job(path: Path, **sections: object) -> Path:
    """A small job with a cluster and a goal, which are no mappings to be merged."""
    write_job(path)
    data = {**yaml.safe_load(path.read_text()), **sections}
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a job was run by the best plan for this machine, as its own needs other hardware."""
    place = tmp_path_factory.mktemp("place")
    job(place / "click.yaml", **RENT)
    done = heterps("run", "click.yaml", "--here", "--compare", cwd=place, fresh=True)
    assert done.returncode == 0, done.stderr
    (place / "stdout").write_text(done.stdout)
    return place


def test_every_step_is_told(place: Path) -> None:
    told = (place / "stdout").read_text()
    for words in ("a batch of 64", "proved optimal", "brute-force", "rent", "best plan for this machine",
                  "predicted and measured", "held-out AUC", "report:"):  # fmt: skip
        assert words in told, words


def test_a_run_has_all_that_belongs_to_it(place: Path) -> None:
    run = place / "runs" / "click"
    profile, cluster = Profile.load(run / "profile.json"), Cluster.load(run / "cluster.yaml")
    plan, rent = Plan.load(run / "plan.json"), Plan.load(run / "rent" / "plan.json")
    assert plan.inputs.profile_sha256 == profile.sha256
    assert plan.inputs.cluster_sha256 == cluster.sha256
    assert {cost.source for layer in profile.layers for cost in layer.costs.values()} == {"measured"}
    rented = Profile.load(run / "rent" / "profile.json")
    assert {(name, cost.source) for layer in rented.layers for name, cost in layer.costs.items()} == {
        ("cpu", "measured"), ("h200", "derived"),
    }  # fmt: skip
    assert rent.predicted.throughput >= 100_000
    for name in ("environment.json", "comparison.json", "frontier.json", "measurement.json"):
        assert json.loads((run / name).read_text())
    assert "<html" in (run / "report.html").read_text()


def test_the_result_lays_prediction_beside_measurement(place: Path) -> None:
    run = place / "runs" / "click"
    result = json.loads((run / "result.json").read_text())
    plan = Plan.load(run / "plan.json")
    assert result["predicted"]["throughput"] == plan.predicted.throughput
    assert result["measured"]["usd_per_million_samples"] == pytest.approx(
        plan.predicted.usd_per_hour / 3600 / result["measured"]["throughput"] * 1e6
    )
    assert all(stage["predicted_s"] > 0 and stage["measured_s"] > 0 for stage in result["stages"])


def steady_run(place: Path) -> Path:
    """A run that took what was predicted, to within what calibration takes at its word. Training takes hundredths of a
    second: a machine that stands still meanwhile makes that a hundred times as long."""
    for name in ["click", *(f"steady-{number}" for number in range(10))]:
        if name != "click":
            done = heterps("run", "click.yaml", "--here", "--name", name, cwd=place)
            assert done.returncode == 0, done.stderr
        result = json.loads((place / "runs" / name / "result.json").read_text())
        if 2 / LARGEST < result["predicted"]["throughput"] / result["measured"]["throughput"] < LARGEST / 2:
            return place / "runs" / name
    pytest.fail(f"no run was near its prediction: {result}")


def test_calibration_brings_the_prediction_to_what_was_measured(place: Path) -> None:
    run = steady_run(place)
    done = heterps("calibrate", run.name, "--out", "better.json", cwd=place, fresh=True)
    assert done.returncode == 0, done.stderr
    result, was = json.loads((run / "result.json").read_text()), Profile.load(run / "profile.json")
    better = Profile.load(place / "better.json")
    slower = result["predicted"]["throughput"] / result["measured"]["throughput"]
    sums = [sum(layer.costs["cpu"].compute_s for layer in profile.layers) for profile in (better, was)]
    assert sums[0] / sums[1] == pytest.approx(slower, rel=0.02)
    again = heterps("run", "click.yaml", "--here", "--name", "again", cwd=place)
    assert "calibrated by a run" in again.stderr
    predicted = json.loads((place / "runs" / "again" / "result.json").read_text())["predicted"]["throughput"]
    assert predicted == pytest.approx(result["measured"]["throughput"], rel=0.02)


def test_a_plan_for_other_hardware_is_not_run_silently(place: Path) -> None:
    done = heterps("run", "click.yaml", "--name", "other", cwd=place)
    assert done.returncode == 3
    assert "rent" in done.stdout
    assert "--here" in done.stderr
    assert not (place / "runs" / "other").exists()


def test_a_dry_run_says_what_it_would_cost(place: Path) -> None:
    done = heterps("run", "click.yaml", "--dry-run", "--name", "dry", cwd=place)
    assert done.returncode == 0
    assert "1,280 samples in" in done.stdout
    assert not (place / "runs" / "dry").exists()


def test_a_goal_out_of_reach_is_explained(place: Path) -> None:
    job(place / "far.yaml", cluster=["cpu:2"], goal={"min_throughput": 1e12})
    done = heterps("run", "far.yaml", cwd=place)
    assert done.returncode == 3
    assert "reach" in done.stderr
    assert heterps("run", "far.yaml", "--here", cwd=place).returncode == 0


def test_the_plan_of_a_file_is_run(place: Path) -> None:
    plan = place / "runs" / "click" / "plan.json"
    done = heterps("run", "click.yaml", "--set", f"plan.file={plan}", "--name", "given", cwd=place)
    assert done.returncode == 0, done.stderr
    job(place / "plain.yaml")
    done = heterps("run", "plain.yaml", "--set", f"plan.file={plan}", "--name", "given", cwd=place)
    assert done.returncode == 0, done.stderr
    assert Plan.load(place / "runs" / "given" / "plan.json").stages == Plan.load(plan).stages


def test_a_run_that_leaves_its_prediction_says_so_and_proposes_a_plan(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half a minute of a run at a third of its predicted throughput, as the trainer tells it."""
    folder = place / "runs" / "click"
    planned, measured = load_planned(folder), Measurement.load(folder / "measurement.json")
    predicted = planned.plan.predicted.throughput
    on_log = watch_drift(Job.load(folder / "job.yaml"), measured, planned, catalogs.load(), folder)
    with Recorder([JsonLines(place / "drift.jsonl")]) as recorder:
        for second in range(1, 31):
            on_log(recorder, int(second * predicted / 3), float(second))
        for thread in threading.enumerate():
            if thread.name == "propose":
                thread.join()
    told = capsys.readouterr().err
    assert told.count("off the predicted") == 1
    assert "-67%" in told
    assert Plan.load(folder / "proposed-plan.json").predicted.throughput < predicted
    names = [record["name"] for record in read_jsonl(place / "drift.jsonl")]
    assert names.count("drift") == 1


def test_profile_writes_what_planning_reads(place: Path) -> None:
    done = heterps("profile", "click.yaml", "--types", "cpu,t4:8", "--out", "profile.json", "--cluster-out",
                   "cluster.yaml", cwd=place, fresh=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    profile = Profile.load(place / "profile.json")
    assert {cost.source for layer in profile.layers for cost in layer.costs.values()} == {"measured", "derived"}
    planned = heterps("plan", "profile.json", "cluster.yaml", "--min-throughput", "1000", "--json", cwd=place)
    assert json.loads(planned.stdout)["search"]["optimal"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"modle": {}}, "modle"),
        ({"train": {"batch_size": "many"}}, "train.batch_size"),
        ({"data": {"source": "criteo", "path": "nowhere/*.tsv"}}, "nowhere"),
        ({"model": {"name": "nowhere:function"}}, "nowhere"),
        ({"cluster": ["h2000"]}, "h200"),
        ({"cluster": {"types": {"mine": {"device": "cuda", "price_per_hour": 1.0}}}}, "catalog"),
        ({"goal": {"min_throughput": -1}}, "min_throughput"),
        ({"plan": {"method": "exakt"}}, "exact"),
        ({"engine": "spark"}, "engine"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else "",
)
def test_a_bad_job_gets_one_clear_message(change: dict[str, object], words: str, tmp_path: Path) -> None:
    told = refused("run", job(tmp_path / "bad.yaml", **change), cwd=tmp_path)
    assert words in told
    assert len([line for line in told.splitlines() if line]) <= 2, told


def test_a_model_function_that_fails_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make():\n    raise RuntimeError('no weights today')\n")
    told = refused("run", job(tmp_path / "bad.yaml", model={"name": "mine:make"}), cwd=tmp_path)
    assert "no weights today" in told
    assert "mine.py:2" in told
