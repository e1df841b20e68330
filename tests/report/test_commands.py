"""`heterps report` and `heterps watch`, as a user runs them."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.cli.commands import command, environment, heterps, refused
from tests.report.runs import make_run


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working directory with a run and the link to it."""
    place = tmp_path_factory.mktemp("place")
    make_run(place / "runs" / "click", steps=40)
    (place / "runs" / "latest").symlink_to("click")
    return place


def test_a_report_lands_beside_its_run(place: Path) -> None:
    done = heterps("report", "latest", cwd=place, fresh=True)
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
    assert words in refused("report", run, cwd=place)


def test_a_page_that_cannot_be_written_is_one_line(place: Path) -> None:
    assert "cannot be written" in refused("report", "latest", "--out", "/proc/nothing/report.html", code=1, cwd=place)


def test_watching_ends_at_ctrl_c(place: Path) -> None:
    watching = subprocess.Popen(
        command("watch", "latest", "--port", "0"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place,
        env={**environment(), "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    try:
        assert watching.stdout is not None
        line = watching.stdout.readline()
        address = line.split(" at ")[1].split()[0]
        assert address.startswith("http://127.0.0.1:")
        with urllib.request.urlopen(address + "data.json", timeout=150) as answer:
            assert json.load(answer)["run"]["name"] == "click"
        watching.send_signal(signal.SIGINT)
        _, complaints = watching.communicate(timeout=150)
        assert (watching.returncode, complaints) == (0, "")
    finally:
        watching.kill()
        watching.wait()
