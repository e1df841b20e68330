"""Reading telemetry as it grows: once, in bounded memory, whatever state the file is in."""

from __future__ import annotations

import json
import math
import random
import tracemalloc
from itertools import pairwise
from pathlib import Path

import pytest

from heterps.report.curves import MOST_POINTS, Curve
from heterps.report.telemetry import MOST_MARKS, TelemetryReader
from heterps.telemetry import read_jsonl
from tests.report.runs import records, write_telemetry


def read(path: Path) -> TelemetryReader:
    reader = TelemetryReader(path)
    assert reader.poll()
    return reader


def told(reader: TelemetryReader) -> object:
    """All that a reader knows."""
    return (
        {name: curve.points() for name, curve in reader.curves.items()},
        {key: (total.count, round(total.seconds, 9)) for key, total in reader.session.totals.items()},
        (reader.session.first_step, reader.session.last_step, reader.session.ended, reader.sessions),
        reader.session.done.points(),
        reader.session.marks,
    )


@pytest.mark.parametrize("seed", range(5))
def test_reading_piece_by_piece_is_reading_at_once(tmp_path: Path, seed: int) -> None:
    whole, growing = tmp_path / "whole", tmp_path / "growing"
    write_telemetry(whole, records(steps=60))
    content, rng = whole.read_bytes(), random.Random(seed)
    cuts = sorted(rng.randrange(len(content)) for _ in range(12))  # in the middle of lines, mostly
    reader = TelemetryReader(growing)
    for begin, end in zip([0, *cuts], [*cuts, len(content)], strict=True):
        with growing.open("ab") as file:
            file.write(content[begin:end])
        assert reader.poll(most_bytes=rng.choice([None, 1 << 20]))
    assert told(reader) == told(read(whole)), seed


def test_a_byte_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "telemetry.jsonl"
    write_telemetry(path, records(steps=30, ended=False))
    reader, parsed = read(path), []
    monkeypatch.setattr("heterps.report.telemetry._parse", lambda line: parsed.append(line) or json.loads(line))
    assert reader.poll()
    assert parsed == []
    added = [{"t": 9.0, "kind": "scalar", "name": "loss", "value": 0.1, "step": 31}]
    write_telemetry(path, added, append=True)
    assert reader.poll()
    assert [json.loads(line) for line in parsed] == added


def test_a_limit_leaves_the_rest_for_later(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    write_telemetry(path, records(steps=40))
    reader, polls = TelemetryReader(path), 1
    while not reader.poll(most_bytes=5_000):
        polls += 1
    assert polls == math.ceil(path.stat().st_size / 5_000) or polls > 10
    assert told(reader) == told(read(path))


def test_sums_are_those_of_the_records(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    write_telemetry(path, records(steps=120))
    expected: dict[int, float] = {}
    for record in read_jsonl(path):
        if record["kind"] == "span" and "stage" in record:
            expected[record["stage"]] = expected.get(record["stage"], 0.0) + record["duration_s"]
    assert read(path).work_s() == pytest.approx(expected)


def test_a_torn_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    write_telemetry(path, records(steps=3, ended=False))
    with path.open("a") as file:
        file.write('{"t": 5.0, "kind": "scalar", "name": "loss", "val')
    reader = read(path)
    assert "loss" not in reader.curves
    with path.open("a") as file:
        file.write('ue": 0.25, "step": 3}\n')
    reader.poll()
    assert reader.curves["loss"].points() == [[3, 0.25]]
    assert reader.damaged == 0


def test_what_is_no_record_is_passed_over_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    lines = ["[1, 2]", "nonsense", '{"kind": "span", "name": "forward", "t": "soon"}', '{"kind": "scalar"}', "{}", "\0",
             '{"kind": "scalar", "name": "loss", "value": "NaN", "step": 1, "t": 0}']  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    reader = read(path)
    assert reader.damaged == 3
    assert reader.curves["loss"].points() == [[1, None]]


def test_a_file_that_is_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    write_telemetry(path, records(steps=30))
    reader = read(path)
    longer = ({**record, "t": record["t"] + 1} for record in records(steps=50, ended=False))
    write_telemetry(path, longer)  # as long as before and longer: only its content tells
    reader.poll()
    assert told(reader) == told(read(path))
    path.unlink()
    assert reader.poll()
    assert reader.sessions == 0


def test_a_resumed_run_shows_its_last_session(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    write_telemetry(path, records(steps=50, ended=False))
    write_telemetry(path, records(steps=30, first=40), append=True)  # killed at 50, the last checkpoint was of 40
    reader = read(path)
    assert (reader.sessions, reader.session.first_step, reader.session.last_step) == (2, 40, 69)
    steps = [step for step, _ in reader.curves["loss"].points()]
    assert steps == sorted(set(steps)) == [*range(5, 75, 5)]
    assert {span.step for span in reader.spans(45, 50) if span.stage is not None} == {*range(45, 51)}


def test_spans_are_found_again_through_the_index(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    write_telemetry(path, records(steps=3000))
    reader = read(path)
    assert len(reader.session.marks) <= MOST_MARKS
    got = [span for span in reader.spans(1500, 1509) if span.stage is not None]
    assert {span.step for span in got} == {*range(1500, 1510)}
    assert len(got) == 10 * (4 + 4 + 4 + 2)
    assert len(reader.spans(0, 2999, most=100)) == 100


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    def peak(steps: int) -> int:
        path = tmp_path / f"{steps}.jsonl"
        write_telemetry(path, records(steps=steps))
        tracemalloc.start()
        try:
            read(path)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(1500), peak(6000)  # 3 and 11 MB
    assert many < 1.3 * few + 500_000


def test_curves_keep_their_shape_and_their_last_point() -> None:
    curve = Curve()
    for step in range(1, 100_001):
        curve.add(step, float(step))
        if step % 9973 == 0:
            assert len(curve.points()) <= MOST_POINTS
            assert curve.points()[-1] == [step, step]
    points = curve.points()
    assert MOST_POINTS // 2 <= len(points) <= MOST_POINTS
    assert points[0] == [1, 1.0]
    assert all(step == value for step, value in points)
    gaps = {int(later[0]) - int(step[0]) for step, later in pairwise(points[:-1])}
    assert len(gaps) == 1
