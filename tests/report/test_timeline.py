"""Which steps the timeline shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.report.telemetry import TelemetryReader
from heterps.report.timeline import MOST_SPANS, timeline
from tests.report.runs import records, write_telemetry


def reader_of(path: Path, **options: object) -> TelemetryReader:
    write_telemetry(path / "telemetry.jsonl", records(**options))  # type: ignore[arg-type]
    reader = TelemetryReader(path / "telemetry.jsonl")
    reader.poll()
    return reader


def test_it_shows_steps_from_the_middle(tmp_path: Path) -> None:
    found = timeline(reader_of(tmp_path, steps=400), newest=False)
    assert found is not None
    assert 160 <= found["first_step"] < found["last_step"] <= 240
    assert found["last_step"] - found["first_step"] == 9
    assert found["stages"] == [0, 1]
    assert all(0 <= span["begin_s"] < span["end_s"] <= found["seconds"] + 1e-9 for span in found["spans"])
    assert {span["name"] for span in found["spans"]} == {"forward", "backward", "update"}


@pytest.mark.parametrize("pause_at", range(45, 56))
def test_an_evaluation_is_not_in_the_way(tmp_path: Path, pause_at: int) -> None:
    found = timeline(reader_of(tmp_path, steps=99, pause_at=pause_at), newest=False)
    assert found is not None
    assert not found["first_step"] <= pause_at < found["last_step"]
    assert found["seconds"] < 0.4


def test_a_live_one_shows_the_newest(tmp_path: Path) -> None:
    found = timeline(reader_of(tmp_path, steps=400, ended=False), newest=True)
    assert found is not None
    assert found["first_step"] >= 400 - 66


def test_few_steps_and_none(tmp_path: Path) -> None:
    found = timeline(reader_of(tmp_path, steps=2, stages=1), newest=False)
    assert found is not None
    assert (found["first_step"], found["last_step"]) == (0, 1)
    (tmp_path / "none").mkdir()
    assert timeline(reader_of(tmp_path / "none", steps=0), newest=False) is None


def test_many_spans_are_fewer_steps(tmp_path: Path) -> None:
    found = timeline(reader_of(tmp_path, steps=40, stages=40), newest=False)  # 316 spans a step
    assert found is not None
    assert found["last_step"] - found["first_step"] + 1 < 6
    assert len(found["spans"]) <= MOST_SPANS
