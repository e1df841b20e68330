from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home directory: neither SkyPilot's tables nor entries of whoever runs the tests."""
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("HETERPS_CATALOG", raising=False)
    monkeypatch.delenv("SKY_RUNTIME_DIR", raising=False)
    return path
