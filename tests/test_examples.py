"""The examples run as they are, from any directory, and say what they should."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from heterps.job import Job

EXAMPLES = Path(__file__).parent.parent / "examples"
MOST_LINES = 60

SAYS = {
    "criteo": r"steps, .* rows, loss .*\nheld-out AUC 0\.(6[5-9]|[7-9]\d)",
    "own_module": r"layers: embedding, .*, loss\n.*held-out AUC 0\.7[2-9].*\nclicks of five rows: (\d+%(, )?){5}\n",
    "plan_only": r"x cpu: embedding\n.* x v100: tower, head\n.*\n.*\nproved to be the cheapest: True\n.*"
    r"only:cpu +finds no plan(.|\n)*a billion a second: no plan reaches",
}
"""What each prints, as a regular expression; the numbers have some room, as sums differ between processors."""


def run(name: str, directory: Path) -> str:
    env = {**os.environ, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "HETERPS_CACHE": str(directory / "cache")}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_known() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_examples_are_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", SAYS)
def test_examples_run(name: str, tmp_path: Path) -> None:
    said = run(name, tmp_path)
    assert re.search(SAYS[name], said, re.DOTALL), said
    assert list(tmp_path.iterdir()) == []  # whatever they write, they clean up


def test_planning_needs_no_torch(tmp_path: Path) -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__main__'); assert 'torch' not in sys.modules"
    command = [sys.executable, "-c", code, str(EXAMPLES / "plan_only.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_example_job_is_sound() -> None:
    job = Job.load(EXAMPLES / "job.yaml")
    training, held_out = job.sources()
    assert held_out is not None
    chain = job.build(training)
    chain.check_batch(job.example(training))
