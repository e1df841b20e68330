"""How the C library hands out memory while a run goes on.

A step needs the same large tensors as the one before. By default glibc gives the memory of freed ones back to the
system, above all in threads other than the main one, and the next step has to have it cleared and mapped again, page by
page: measured at 3 of 15 ms of a small model's step.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # of malloc.h
_KEPT_BYTES = 2**31 - 1
_LARGEST_BYTES = 2**25
"""The largest piece that glibc keeps: it maps larger ones each time."""


@cache
def keep_freed_memory() -> None:
    """From now on freed memory is kept for what comes next. Does nothing where the C library is another one."""
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, 1)  # threads have heaps of their own otherwise, which are given back whole
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
