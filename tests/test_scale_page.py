"""docs/scale.md shows what comes out of the profiles beside it today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "scale.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
