from __future__ import annotations

import subprocess
import sys
import time

from heterps.profile.others import watch_others

SPIN = "import time\nprint(flush=True)\nuntil = time.time() + 300\nwhile time.time() < until: pass"
PATIENCE_S = 150.0


def _spin(seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_other_programs_are_seen_and_one_self_is_not() -> None:
    """Shares of two stretches of one machine: with another program that computes, and without it."""
    alone = watch_others()
    _spin(0.6)
    before = alone()
    other = subprocess.Popen([sys.executable, "-c", SPIN], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline(), "it has started"
        beside, end = watch_others(), time.monotonic() + PATIENCE_S
        _spin(0.6)
        while (during := beside()) <= 0.1 and time.monotonic() < end:  # it may have to wait for a core
            _spin(0.6)
    finally:
        other.kill()
        other.communicate()
    assert 0 <= before <= 1
    assert during > 0.1
