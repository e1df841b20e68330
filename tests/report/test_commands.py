"""`heterps report` and `heterps watch`, as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.cli.commands import environment
from tests.report.runs import make_run

MAIN = """
import sys, typer
from heterps.cli import main, report, watch
for module in (report, watch):
    if module.__name__ not in [each.callback.__module__ for each in main.app.registered_commands]:
        main.app.command()(getattr(module, module.__name__.rpartition(".")[2]))
sys.argv[0] = "heterps"
main.main()
"""


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-c", MAIN, *map(str, args)]


def heterps(*args: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=environment()
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a run and the link to it."""
    place = tmp_path_factory.mktemp("place")
    make_run(place / "runs" / "click", steps=40)
    (place / "runs" / "latest").symlink_to("click")
    return place


def test_a_report_lands_beside_its_run(place: Path) -> None:
    done = heterps("report", "latest", cwd=place)
    assert done.returncode == 0, done.stderr
    page = place / "runs" / "click" / "report.html"
    assert Path(done.stdout.strip()) == page.resolve()
    assert page.read_text().startswith("<!doctype html>")
    assert "349,032/s predicted" in done.stderr


def test_everything_can_go_elsewhere(place: Path, tmp_path: Path) -> None:
    done = heterps("report", "click", "--out", tmp_path / "a" / "b.html", "--png", tmp_path / "png", "--json",
                   tmp_path / "data.json", "--runs", place / "runs", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a" / "b.html").exists()
    assert len([*(tmp_path / "png").glob("*.png")]) == 9
    assert json.loads((tmp_path / "data.json").read_text())["format"] == "heterps.report/1"


def test_json_alone_can_be_piped(place: Path) -> None:
    done = heterps("report", place / "runs" / "click", "--json", "-", cwd=place)
    assert json.loads(done.stdout)["run"]["name"] == "click"
    assert done.stderr == ""


@pytest.mark.parametrize(("run", "words"), [("nowhere", "no run 'nowhere'"), (".", "it is no run")])
def test_what_is_no_run_is_refused(place: Path, run: str, words: str) -> None:
    done = heterps("report", run, cwd=place)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_page_that_cannot_be_written_is_one_line(place: Path) -> None:
    done = heterps("report", "latest", "--out", "/proc/nothing/report.html", cwd=place)
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot be written" in done.stderr


def test_watching_ends_at_ctrl_c(place: Path) -> None:
    watching = subprocess.Popen(command("watch", "latest", "--port", "0"), stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True, cwd=place, env=environment() | {"PYTHONUNBUFFERED": "1"})  # fmt: skip  # noqa: E501
    try:
        assert watching.stdout is not None
        line = watching.stdout.readline()
        address = line.split(" at ")[1].split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address + "data.json", timeout=60) as answer:
            assert json.load(answer)["run"]["name"] == "click"
        watching.send_signal(signal.SIGINT)
        _, complaints = watching.communicate(timeout=30)
        assert (watching.returncode, complaints) == (0, "")
    finally:
        watching.kill()
        watching.wait()
