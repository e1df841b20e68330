"""Which cores a replica computes on, where replicas fill a machine.

Linux moves threads between cores as it sees fit. In a virtual machine of two we saw what was woken wait behind a
replica that computes, while the other core had nothing to do. Steps of 8.4 ms of two replicas there take 7.6 if the
threads that compute stay on a core each (measured; sync, Zipf ids), and of 7.7 ms 7.0 if all others do too (async).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from heterps.runtime.cluster.layout import Layout, Seat

THREADS = Path("/proc/self/task")


def own_cores(me: Seat, layout: Layout, hosts: Mapping[Seat, str], cores: Sequence[int]) -> list[int]:
    """The cores of a replica, if those on its host have one each for all of their threads, and none is left.

    Else there are none of its own: who has cores to spare, shares them with other jobs, or uses a GPU is better off
    with what Linux does.
    """
    here = [seat for seat in layout.seats() if hosts[seat] == hosts[me]]
    wanted = [layout.stages[seat.stage].shares[seat.replica] for seat in here]
    if sum(wanted) != len(cores) or any(layout.stages[seat.stage].device != "cpu" for seat in here):
        return []
    first = sum(wanted[: here.index(me)])
    return list(cores[first : first + wanted[here.index(me)]])


def allowed() -> list[int]:
    """The cores that this process may run on; none where that cannot be told."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def stay(cores: Sequence[int]) -> None:
    """Keeps all threads of this process, and those to come, on these cores; none: leaves them alone."""
    for thread in THREADS.iterdir() if cores else ():
        with suppress(OSError):  # it has ended meanwhile
            os.sched_setaffinity(int(thread.name), cores)
