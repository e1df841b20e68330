from __future__ import annotations

import subprocess
import sys
import time

from heterps.profile.others import watch_others

SPIN = "import time\nuntil = time.time() + 60\nwhile time.time() < until: pass"


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_other_programs_are_seen_and_one_self_is_not() -> None:
    """Shares of two stretches of one machine: with another program that computes, and without it."""
    alone = watch_others()
    _spin(0.6)
    before = alone()
    other = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        beside = watch_others()
        _spin(0.6)
        during = beside()
    finally:
        other.kill()
        other.wait()
    assert 0 <= before <= 1
    assert during > 0.1
