from __future__ import annotations

from functools import partial

import pytest

import heterps.profile.probe as probing
import heterps.profile.sweep as sweeping
from heterps.telemetry import Recorder
from tests.profile import sleepers


@pytest.fixture
def nap_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweeps and probes measure how long layers nap, and nothing of what else the machine does."""
    clock = sleepers.NapTime()
    monkeypatch.setattr(sleepers, "sleep", clock.sleep)
    monkeypatch.setattr(sweeping, "time", clock)
    monkeypatch.setattr(probing, "Recorder", partial(Recorder, clock=clock.perf_counter))
