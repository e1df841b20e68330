from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

import heterps.schedule.methods.exact as exact


@pytest.fixture(autouse=True)
def _seconds_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches may take seconds of a processor, not of the day: what they find is the same on a machine that stalls.

    Random problems are searched, too, with little time; a seed must give one problem.
    """
    monkeypatch.setattr(exact, "time", SimpleNamespace(perf_counter=time.thread_time))
