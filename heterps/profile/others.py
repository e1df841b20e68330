"""How much of the machine other programs use while something is measured: what they take makes times too long."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

_STAT = Path("/proc/stat")


def watch_others() -> Callable[[], float]:
    """Starts watching; the function it gives tells the share of all cores that others used since then.

    Between 0 and 1; 0 where the system does not tell.
    """
    began, busy, own = time.perf_counter(), _busy_s(), _own_s()

    def share() -> float:
        lasted = time.perf_counter() - began
        if busy is None or lasted <= 0:
            return 0.0
        others_s = (_busy_s() or busy) - busy - (_own_s() - own)
        return min(max(others_s / lasted / (os.cpu_count() or 1), 0.0), 1.0)

    return share


def _busy_s() -> float | None:
    """Seconds that all cores of the machine have worked since its start."""
    try:
        words = _STAT.read_text().split("\n", 1)[0].split()[1:]
        user, nice, system, _idle, _iowait, irq, softirq, *rest = map(int, words)
    except (OSError, ValueError):
        return None
    steal = rest[0] if rest else 0
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Seconds that this process and its ended children have worked."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
