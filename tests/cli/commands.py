"""The command line in real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]


def command(*args: str | Path) -> list[str]:
    return [sys.executable, "-m", "heterps.cli.main", *map(str, args)]


def heterps(
    *args: str | Path, cwd: Path | None = None, fresh: bool = False, imports: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """A command's end. `fresh`: by an interpreter that has to import all it needs, as a user's does, which takes
    seconds; each command is tried so once at least. `imports`: modules that another one imports first."""
    if fresh:
        return subprocess.run(
            command(*args), capture_output=True, text=True, timeout=300, check=False, cwd=cwd, env=environment()
        )
    with tempfile.NamedTemporaryFile("r") as stdout, tempfile.NamedTemporaryFile("r") as stderr:
        order = {
            "args": list(map(str, args)), "cwd": str(cwd or Path.cwd()), "environment": environment(),
            "stdout": stdout.name, "stderr": stderr.name, "imports": imports,
        }  # fmt: skip
        status = _nursery().order(order)
        return subprocess.CompletedProcess(order["args"], status, stdout.read(), stderr.read())


def environment() -> dict[str, str]:
    """One thread of torch's: tests run side by side."""
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def refused(*args: str | Path, code: int = 2, cwd: Path | None = None, fresh: bool = False) -> str:
    done = heterps(*args, cwd=cwd, fresh=fresh)
    assert done.returncode == code, done
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    return done.stderr


class _Nursery:
    """The process of tests.cli.nursery; it ends with this one, whose end of the pipe it reads."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.cli.nursery"], cwd=ROOT, env=environment(), text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    def order(self, order: dict[str, object]) -> int:
        """The exit status of a command."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        return int(self._process.stdout.readline())


_nursery = cache(_Nursery)
