"""Where a run takes place: versions and hardware, for the report of what it gave."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any


def describe_environment() -> dict[str, Any]:
    """Versions of heterps, Python and PyTorch, the operating system, the CPU, its cores and memory, and the GPUs.

    What the system does not tell is None. GPUs are asked of PyTorch, which is imported for it.
    """
    return {
        "heterps": _version("heterps"),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "os": _os_name(),
        "machine": platform.machine(),
        "cpu": _cpu_model(),
        "cores": _cores(),
        "memory_bytes": _memory_bytes(),
        "gpus": _gpus(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _os_name() -> str:
    """Such as `Debian GNU/Linux 12 (bookworm), Linux 6.1.0`."""
    kernel = f"{platform.system()} {platform.release()}".strip()
    try:
        name = platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        name = None
    return f"{name}, {kernel}" if name else kernel


def _cpu_model() -> str | None:
    """As the kernel names it; `platform` knows it on systems without /proc."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip() == "model name":
                return " ".join(value.split())
    except OSError:
        pass
    return platform.processor() or None


def _cores() -> int | None:
    """That this process may use, which can be fewer than there are."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _gpus() -> list[dict[str, Any]]:
    """Name and memory of each; none if there is no PyTorch or no driver."""
    try:
        import torch

        found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    except (ImportError, RuntimeError, AssertionError):
        return []
    return [{"name": gpu.name, "memory_bytes": int(gpu.total_memory)} for gpu in found]
