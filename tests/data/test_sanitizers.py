"""The text parser's own test, built with the compiler's sanitizers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "csrc" / "data"


def test_the_parser_is_clean(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    assert compiler is not None, "a C++ compiler builds heterps, so there must be one"
    program = str(tmp_path / "parse_test")
    flags = ["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined",
             "-fno-sanitize-recover=all", f"-I{SOURCES}"]  # fmt: skip
    test = Path(__file__).with_name("parse_test.cpp")
    subprocess.run([compiler, *flags, str(test), str(SOURCES / "text.cpp"), "-o", program], check=True)
    done = subprocess.run([program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip() == "ok"
