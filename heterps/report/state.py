"""Whether a run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from heterps.report.telemetry import TelemetryReader

WAITING, RUNNING, OVER, BROKEN = "waiting", "running", "over", "broken off"
"""Not begun; being trained; ended, as its result says; ended without saying so, as when a process is killed."""
QUIET_S = 20.0
"""Telemetry that nobody wrote to for so long, in a directory that nobody holds, is of a process that is gone. It is
written a few times a second while steps are done (assumed: no step takes as long)."""


def of_run(path: Path, telemetry: TelemetryReader, *, clock: Callable[[], float]) -> str:
    """One of the states above."""
    if not telemetry.sessions:
        return WAITING
    if telemetry.session.ended:
        return OVER
    if _held(path / ".lock"):
        return RUNNING
    try:
        quiet_s = clock() - telemetry.path.stat().st_mtime
    except OSError:
        return BROKEN
    return RUNNING if quiet_s < QUIET_S else BROKEN


def _held(lock: Path) -> bool:
    """Whether a process holds the run's lock, as far as the system tells. Trying to take it could stop a training."""
    try:
        inode = str(lock.stat().st_ino)
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    return any(
        len(words) > 5 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode
        for words in map(str.split, locks.splitlines())
    )
