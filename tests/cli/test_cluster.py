"""Commands and options for clusters, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("ray", reason="engine ray needs ray: pip install heterps[ray]")

from heterps.cli.main import app
from heterps.errors import InvalidInput
from heterps.job import Job
from tests.cli.commands import refused
from tests.cli.jobs import JOB, write_job


def test_a_cluster_that_is_not_there_is_said_at_once():
    assert "no Ray cluster at 127.0.0.1:1" in refused("status", "--address", "127.0.0.1:1", code=1, fresh=True)


@pytest.mark.parametrize(
    "option", [["--wait", "5"], ["--set", "engine.elastic=true"], ["--set", "engine.metrics_port=0"]]
)
def test_options_of_engine_ray_are_refused_for_local(tmp_path: Path, option: list[str]):
    job = write_job(tmp_path / "job.yaml")
    done = CliRunner().invoke(app, ["train", str(job), *option])
    assert isinstance(done.exception, InvalidInput)
    assert "for engine ray" in str(done.exception)


@pytest.mark.parametrize(
    "sections",
    [
        {"train": {"mode": "async", "staleness": 2}},
        {"eval": {"every_steps": 10, "early_stop": {"patience": 2}}},
        {"engine": {"name": "ray", "elastic": True, "stragglers": "replace", "metrics_port": 0, "wait_minutes": 2}},
    ],
)
def test_engine_ray_takes_what_local_takes(sections: dict[str, object]):
    job = Job.from_dict({**JOB, "engine": "ray", **sections})
    assert job.engine.name == "ray"


@pytest.mark.parametrize(
    ("engine", "rule"),
    [({"name": "ray", "metrics_port": 70000}, "metrics_port"), ({"name": "ray", "stragglers": "kill"}, "stragglers")],
)
def test_bad_values_are_refused(engine: dict[str, object], rule: str):
    with pytest.raises(InvalidInput, match=rule):
        Job.from_dict({**JOB, "engine": engine})
