"""JSON lines: what they say, and that a full disk or a killed process leaves a file that can be read."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from heterps.errors import InvalidInput
from heterps.telemetry import JsonLines, Recorder, read_jsonl
from tests.telemetry.fakes import LIMIT_S, Clock

WRITES = f"""
import os, sys
from heterps.telemetry import ChromeTrace, JsonLines, Recorder
from heterps.telemetry.writer import Writer
Writer.close.__defaults__ = ({LIMIT_S},)
recorder = Recorder([JsonLines(sys.argv[1]), ChromeTrace(sys.argv[2])], every_s=60)
for step in range(3):
    with recorder.span("forward", stage=0, step=step):
        pass
"""
"""A program that records, to be ended in one way or another."""


def run(ending: str, folder: Path) -> int:
    command = [sys.executable, "-c", WRITES + ending, folder / "t.jsonl", folder / "t.json"]
    return subprocess.run(command, timeout=LIMIT_S, check=False).returncode


def test_lines_hold_the_documented_fields(tmp_path: Path):
    clock, path = Clock(), tmp_path / "new" / "telemetry.jsonl"
    with Recorder([JsonLines(path)], clock=clock, every_s=3600) as recorder:  # it writes only when it is told
        clock.now += 0.5
        with recorder.span("pull", stage=2, step=0, micro_batch=1):
            clock.now += 0.25
        with recorder.span("read"):
            pass
        recorder.scalar("loss", 0.5, step=3)
        recorder.event("retry", reason="läuft", after_s=1.5)
        recorder.flush()
        recorder.count("rows", 4)
    start, *lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert start["fields"].keys() == {"format", "unix_s"}
    assert lines == [
        {"t": 0.5, "kind": "span", "name": "pull", "duration_s": 0.25, "stage": 2, "step": 0, "micro_batch": 1},
        {"t": 0.75, "kind": "span", "name": "read", "duration_s": 0.0},
        {"t": 0.75, "kind": "scalar", "name": "loss", "value": 0.5, "step": 3},
        {"t": 0.75, "kind": "event", "name": "retry", "fields": {"reason": "läuft", "after_s": 1.5}},
        {"t": 0.75, "kind": "event", "name": "end", "fields": {"dropped": 0}},
        {"t": 0.75, "kind": "count", "name": "rows", "total": 4},
    ]
    assert list(read_jsonl(path)) == [start, *lines]


def test_numbers_that_json_does_not_know(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    with Recorder([JsonLines(path)]) as recorder:
        for step, value in enumerate((math.nan, math.inf, -math.inf)):
            recorder.scalar("loss", value, step=step)
        recorder.event("diverged", losses=[math.nan, 1.0], worst={"x": -math.inf}, where=Path("x"))

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert [line["value"] for line in lines if line["kind"] == "scalar"] == ["NaN", "Infinity", "-Infinity"]
    assert lines[4]["fields"] == {"losses": ["NaN", 1.0], "worst": {"x": "-Infinity"}, "where": "x"}
    nan, *infinite = [line["value"] for line in read_jsonl(path) if line["kind"] == "scalar"]
    assert math.isnan(nan)
    assert infinite == [math.inf, -math.inf]


def test_a_torn_last_line_is_left_out_wherever_it_is_torn(tmp_path: Path):
    path, whole = tmp_path / "t.jsonl", b'{"t":0,"kind":"count","name":"a","total":1}\n'
    for length in range(len(whole) - 1):
        path.write_bytes(whole + whole[:length])
        assert len(list(read_jsonl(path))) == 1
    path.write_bytes(whole + whole[:-1])
    assert len(list(read_jsonl(path))) == 2


def test_a_broken_line_before_the_last_is_an_error(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"kind":"event"}\n{"kind":\n{"kind":"event"}\n')
    with pytest.raises(InvalidInput, match="line 2"):
        list(read_jsonl(path))
    with pytest.raises(InvalidInput, match="cannot read"):
        list(read_jsonl(tmp_path / "missing"))


@pytest.mark.parametrize("torn", [b"", b'{"t":1', b'{"t":1,"name":"' + b"x" * 200_000])
def test_append_continues_after_the_last_whole_line(tmp_path: Path, torn: bytes):
    path = tmp_path / "t.jsonl"
    for step in range(3):
        with Recorder([JsonLines(path, append=True)]) as recorder:
            recorder.scalar("loss", 1.0, step=step)
        with path.open("ab") as file:
            file.write(torn)
    lines = list(read_jsonl(path))
    assert [line["step"] for line in lines if line["kind"] == "scalar"] == [0, 1, 2]
    assert [line["name"] for line in lines if line["kind"] == "event"] == ["start", "end"] * 3


def test_append_to_nothing_but_a_torn_line(tmp_path: Path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"t"')
    Recorder([JsonLines(path, append=True)]).close()
    assert [line["name"] for line in read_jsonl(path)] == ["start", "end"]


def test_a_path_that_cannot_be_written_is_refused_at_once(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot write telemetry to"):
        JsonLines(tmp_path / "file" / "t.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_a_full_disk_ends_the_file_not_the_training(caplog: pytest.LogCaptureFixture):
    with Recorder([JsonLines("/dev/full")]) as recorder:
        for step in range(10):
            recorder.scalar("loss", 0.0, step=step)
        recorder.flush()
        recorder.scalar("loss", 0.0, step=10)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "/dev/full" in message
    assert recorder.dropped == 13  # with start and end


def test_a_program_that_ends_without_close_loses_nothing(tmp_path: Path):
    assert run("", tmp_path) == 0
    assert [line.get("step") for line in read_jsonl(tmp_path / "t.jsonl")] == [None, 0, 1, 2]
    assert len(json.loads((tmp_path / "t.json").read_text())) == 7


def test_a_killed_program_leaves_what_was_flushed(tmp_path: Path):
    ending = f"assert recorder.flush({LIMIT_S})\nrecorder.event('lost')\nos.kill(os.getpid(), 9)"
    assert run(ending, tmp_path) == -signal.SIGKILL
    assert [line.get("step") for line in read_jsonl(tmp_path / "t.jsonl")] == [None, 0, 1, 2]
    assert len(json.loads((tmp_path / "t.json").read_text() + "]")) == 7
