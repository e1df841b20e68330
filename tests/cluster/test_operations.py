"""What people do with runs on a cluster: look at them, stop them, lose the command that started them, measure them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")

import ray

import heterps
from heterps.cli.main import app
from heterps.errors import InvalidInput
from heterps.report.data import read_run
from heterps.runtime import Checkpoints, Settings
from heterps.runtime.cluster.engine import train_on_ray
from heterps.runtime.settings import EarlyStop
from heterps.telemetry import JsonLines, Recorder, read_jsonl
from tests.cluster.background import (
    at_checkpoint,
    background,
    command,
    events,
    nothing_runs,
    orphan,
    status,
    stopped_if_it_fails,
    the_coordinator,
    told,
)
from tests.cluster.counting import Gate
from tests.cluster.driver import Spec
from tests.cluster.faults import assert_equal, assert_exactly_once, trained, unbroken
from tests.cluster.jobs import PATIENCE_S, PATIENT, slow_model, wait_for
from tests.runtime.plain import sgd
from tests.runtime.plans import make_plan
from tests.runtime.reference import STEPS, batches, build, dense_optimizer

pytestmark = pytest.mark.usefixtures("cluster")
JOB = """
model: {name: ctrdnn, args: {dim: 4, slots: 3, dense: 2, hidden: [8]}}
data: {source: synthetic, rows: 1500, slots: 3, dense: 2, ids: 200}
train: {batch_size: 32, micro_batches: 2}
eval: {fraction: 0.2, every_steps: 10}
"""


def scalars(run: Path, name: str) -> dict[int, float]:
    """The last value of each step."""
    records = read_jsonl(run / "telemetry.jsonl")
    return {record["step"]: record["value"] for record in records if record.get("name") == name}


def test_result_telemetry_evaluations_and_report_are_those_of_engine_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text(JOB)
    make_plan(4, (1,)).save("plan.json")
    for engine in ("local", "ray"):
        command("train", "job.yaml", "--plan", "plan.json", "--name", engine, "--engine", engine, "--json")
    local, on_ray = Path("runs/local"), Path("runs/ray")
    expected, result = (json.loads((path / "result.json").read_text()) for path in (local, on_ray))
    assert (result["steps"], result["samples"]) == (expected["steps"], expected["samples"])
    for figure in ("loss", "eval_loss", "auc"):
        assert result[figure] == pytest.approx(expected[figure], rel=1e-4), figure
    for name in ("eval/loss", "eval/auc"):
        ours, theirs = scalars(on_ray, name), scalars(local, name)
        assert list(ours) == list(theirs) == [10, 20, 30, 38]
        assert list(ours.values()) == pytest.approx(list(theirs.values()), rel=1e-4), name
    losses = scalars(on_ray, "loss")
    assert set(losses) >= set(range(20, 39, 20)) | {38}
    assert losses[38] == pytest.approx(scalars(local, "loss")[38], rel=1e-4)
    assert scalars(on_ray, "auc")[38] == pytest.approx(scalars(local, "auc")[38], rel=1e-4)
    for figure in ("rows", "creations"):
        name = f"table/embedding/{figure}"
        assert scalars(on_ray, name)[38] == scalars(local, name)[38]
    page = read_run(on_ray)
    assert page["run"]["state"] == "over"
    assert page["measured"]["steps"] == result["steps"] == 38
    assert [stage["units"] for stage in page["stages"]] == [1, 1]
    assert page["timeline"] is not None
    assert page["store"][0]["rows"] > 0
    assert page["wrong"] == []


def test_python_stops_early_as_engine_local_does(tmp_path: Path):
    held_out = batches("ctrdnn")[:5]
    rules: dict[str, Any] = {
        "evaluation": held_out, "eval_every": 5, "early_stop": EarlyStop(patience=2, min_gain=0.2),
        "micro_batches": 2, "optimizer": dense_optimizer, "steps": STEPS,
    }  # fmt: skip
    logged: list[int] = []
    chain, other = build("ctrdnn"), build("ctrdnn")
    local = heterps.train(other, batches("ctrdnn"), make_plan(build("ctrdnn"), (2,)), **rules)
    ours = heterps.train(
        chain, batches("ctrdnn"), make_plan(build("ctrdnn"), (2,)), engine={"name": "ray", "shards": 1},
        checkpoints=tmp_path, log_every=5, on_log=lambda samples, seconds: logged.append(samples), **rules,
    )  # fmt: skip
    assert (ours.stopped, ours.steps) == (local.stopped, local.steps) == ("early", local.steps)
    assert [found["step"] for found in ours.evaluations] == [found["step"] for found in local.evaluations]
    assert ours.eval_loss == pytest.approx(local.eval_loss, rel=1e-4)
    assert len(logged) >= ours.steps // 5
    assert logged[-1] == ours.samples
    for name, weight in other.state_dict().items():
        torch.testing.assert_close(chain.state_dict()[name], weight, rtol=1e-4, atol=1e-6)
    assert nothing_runs()


@pytest.mark.parametrize(
    ("engine", "rule"),
    [
        ("spark", "'local' or 'ray'"),
        ({"name": "ray", "adress": "x"}, "address"),
        ({"name": "local", "shards": 1}, "no"),
    ],
)
def test_bad_engines_are_refused(engine: Any, rule: str):
    with pytest.raises(InvalidInput, match=rule):
        heterps.train(build("dlrm"), batches("dlrm"), make_plan(build("dlrm")), engine=engine)


def test_data_that_cannot_be_sent_is_refused(tmp_path: Path):
    generator = (batch for batch in batches("dlrm"))
    with pytest.raises(InvalidInput, match="cannot be sent"):
        heterps.train(build("dlrm"), generator, make_plan(build("dlrm")), engine="ray", checkpoints=tmp_path)


def test_a_job_is_seen_measured_and_stopped(tmp_path: Path):
    """Another one of the same name runs beside it for a while, by a name of its own."""
    (tmp_path / "two").mkdir()
    with background(tmp_path, name="click", metrics_port=0, metrics_host="127.0.0.1") as run:
        assert wait_for(at_checkpoint("click", 10))
        found = json.loads(command("status", "click", "--json"))
        assert (found["job"], found["step"], found["steps"], found["samples"]) == ("click", 10, 40, 320)
        assert found["loss"] > 0
        assert [len(stage["replicas"]) for stage in found["stages"]] == [1, 1]
        assert all(replica["machine"] for stage in found["stages"] for replica in stage["replicas"])
        assert len(found["shards"]) == 1
        assert found["tables"]["rows"]["rows"] > 0
        assert "click" in command("status")
        for words in ("stage", "shards:", "table rows:", "attempt 1", "step 10", "metrics: http"):
            assert words in command("status", "click")
        assert_read_only(found["metrics"])
        with background(tmp_path / "two", name="click") as two:
            assert wait_for(lambda: bool(status("click-2")))
            two.open(40)
            assert two.result().steps == 40
        stopping = threading.Thread(target=command, args=("stop", "click"))
        stopping.start()
        assert wait_for(lambda: status("click").get("state") == "stopping")
        run.open(40)  # it ends after the steps that are under way
        stopping.join(PATIENCE_S)
        assert run.result().stopped == "interrupted"
    assert 10 <= run.result().steps < 40
    assert nothing_runs()
    assert command("status").strip() == "no job runs on this cluster"
    assert "no job 'click'" in str(CliRunner().invoke(app, ["stop", "click"]).exception)


def assert_read_only(address: str) -> None:
    """Prometheus' text is there, by GET alone."""
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = answer.read().decode().splitlines()
    figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert figures['heterps_samples_total{job="click"}'] == "320.0"
    assert figures['heterps_step{job="click"}'] == "10.0"
    for name in ("loss", "auc", "samples_per_second", "busy_ratio", "checkpoint_age_seconds", "checkpoint_seconds",
                 "table_rows", "table_bytes"):  # fmt: skip
        assert any(line.startswith(f"heterps_{name}{{") for line in lines) or name == "auc", name
    for request in (
        urllib.request.Request(address, data=b"stop", method="POST"),
        urllib.request.Request(address.replace("/metrics", "/stop")),
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=PATIENCE_S)
        assert refused.value.code in (404, 501)


def test_a_job_outlives_its_driver_and_is_followed_again(tmp_path: Path):
    """SIGKILL of the driver and of the coordinator, whose successor freezes: the job goes on, and whoever calls again
    gets its result.

    Weights and rows are, to the last bit, those of a run that nothing happened to.
    """
    orphan(tmp_path, open_to=10, frozen_s=6.0)
    with stopped_if_it_fails("orphan"):
        Gate.open(tmp_path / "gate", 20)
        assert wait_for(at_checkpoint("orphan", 20))
        for number, step in ((signal.SIGKILL, 25), (signal.SIGSTOP, 30)):
            coordinator = the_coordinator()
            os.kill(coordinator, number)
            Gate.open(tmp_path / "gate", step)
            assert wait_for(at_checkpoint("orphan", step))
        with suppress(ProcessLookupError):
            os.kill(coordinator, signal.SIGKILL)
        assert wait_for(lambda: status("orphan").get("followed") is False)
        assert "the command that started it is gone" in command("status", "orphan")
        assert told("orphan")["restarts"]["coordinator"] >= 2  # a machine that stalls may look frozen, too
    with background(tmp_path, open_to=40, name="other") as run:
        result = run.result()
    assert (result.steps, len(result.losses)) == (40, 40)
    assert events(run.telemetry, "restart")[0]["kind"] == "coordinator"
    assert nothing_runs()
    spec = Spec(
        address="", checkpoints=str(tmp_path / "checkpoints"), steps=40, replicas=(1, 1), shards=1, micro_batches=2
    )
    chain, (whole, expected) = trained(spec), unbroken(tmp_path / "unbroken", spec)
    assert_exactly_once(chain, spec)
    assert result.losses == expected
    assert_equal(chain, whole)


def test_a_frozen_coordinator_is_replaced(tmp_path: Path):
    with background(tmp_path, limits=replace(PATIENT, frozen_s=5.0, tries=10)) as run:
        assert wait_for(at_checkpoint("train", 10))
        coordinator = the_coordinator()
        os.kill(coordinator, signal.SIGSTOP)
        run.open(40)
        result = run.result()
    assert (result.steps, len(result.losses)) == (40, 40)
    assert any("gave no answer" in event["reason"] for event in events(run.telemetry, "restart"))
    with suppress(ProcessLookupError):
        os.kill(coordinator, signal.SIGKILL)


def test_a_straggler_is_told_and_replaced(tmp_path: Path):
    """One of two replicas is slow, in its first process; the run goes on without it.

    On a machine that does other things as well, one of those after it may seem slow later.
    """
    chain = build("ctrdnn")
    recorder = Recorder([JsonLines(tmp_path / "telemetry.jsonl")])
    settings = Settings(
        steps=200, micro_batches=2, optimizer=sgd, recorder=recorder,
        checkpoints=Checkpoints(path=tmp_path / "checkpoints"),
    )  # fmt: skip
    with recorder:
        result = train_on_ray(
            chain, partial(slow_model, "ctrdnn", str(tmp_path)), make_plan(chain, units=2), settings, replicas=2,
            shards=1, stragglers="replace", limits=replace(PATIENT, slow_stretches=2), bring_back=False,
        )  # fmt: skip
    assert events(tmp_path / "telemetry.jsonl", "straggler")[0]["times"] > 1.5
    assert {event["kind"] for event in events(tmp_path / "telemetry.jsonl", "restart")} == {"straggler"}
    assert (result.steps, len(result.losses)) == (200, 200)


def test_run_measures_plans_and_trains_on_a_cluster(tmp_path: Path):
    """`heterps run JOB --engine ray` as people start it, on this cluster."""
    (tmp_path / "job.yaml").write_text(JOB)
    environment = {**os.environ, "HETERPS_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    address = ray.get_runtime_context().gcs_address
    done = subprocess.run(
        [sys.executable, "-m", "heterps.cli.main", "run", "job.yaml", "--engine", "ray", "--address", address,
         "--wait", "1"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "runs" / "job" / "result.json").read_text())
    assert (result["steps"], result["stopped"]) == (38, "done")
    assert result["stages"][0]["predicted_s"] > 0
    assert "report:" in done.stdout
