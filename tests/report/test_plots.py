"""The charts as PNG files."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.report.data import read_run
from heterps.report.run_plots import PLOTS, plot_run
from tests.report.runs import make_run, records, write_telemetry


def png_size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return int.from_bytes(content[16:20]), int.from_bytes(content[20:24])


@pytest.mark.parametrize("evil", [False, True])
def test_a_complete_run_has_all_plots(tmp_path: Path, evil: bool) -> None:
    written = plot_run(read_run(make_run(tmp_path / "run", steps=40, evil=evil)), tmp_path)
    assert [path.stem for path in written] == [*PLOTS]
    assert all(size > 200 for path in written for size in png_size(path))


def test_what_has_no_data_has_no_plot(tmp_path: Path) -> None:
    write_telemetry(tmp_path / "telemetry.jsonl", records(steps=12, stages=1))
    assert {path.stem for path in plot_run(read_run(tmp_path), tmp_path)} == {"stages", "timeline", "curves"}
