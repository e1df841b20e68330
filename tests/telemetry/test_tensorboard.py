"""Scalars as TensorBoard reads them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heterps.errors import InvalidInput
from heterps.telemetry import Recorder, TensorBoard


def test_scalars_come_back(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with Recorder([TensorBoard(tmp_path / "tb")]) as recorder:
        for step in range(3):
            recorder.scalar("loss", 1.0 / (step + 1), step=step)
            with recorder.span("forward", stage=0):
                recorder.count("rows")
        recorder.scalar("auc", 0.75, step=2)
    found = accumulator.EventAccumulator(str(tmp_path / "tb")).Reload()
    assert set(found.Tags()["scalars"]) == {"loss", "auc"}
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [
        (0, 1.0),
        (1, 0.5),
        (2, pytest.approx(1 / 3)),
    ]
    assert recorder.dropped == 0


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for module in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InvalidInput, match=r"install 'heterps\[tensorboard\]'"):
        TensorBoard(tmp_path)


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="cannot write telemetry"):
        TensorBoard(tmp_path / "file")
