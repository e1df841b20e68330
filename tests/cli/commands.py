"""The command line in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "heterps.cli.main", *map(str, args)]


def heterps(*args: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*args), capture_output=True, text=True, timeout=120, check=False, cwd=cwd, env=environment()
    )


def environment() -> dict[str, str]:
    """One thread of torch's: tests run side by side."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def refused(*args: str | Path, code: int = 2, cwd: Path | None = None) -> str:
    done = heterps(*args, cwd=cwd)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr
