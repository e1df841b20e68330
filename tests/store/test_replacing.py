"""Files in place of others: their mode, and what killed writers leave."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from heterps.errors import HeterPSError
from heterps.store import SparseTable
from heterps.store.replacing import replacing


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_files_have_the_usual_mode(tmp_path: Path, umask: int, mode: int) -> None:
    table = SparseTable(dim=2, optimizer="sgd")
    table.pull(np.arange(3))
    before = os.umask(umask)
    try:
        table.save(tmp_path / "table.hps")
        table.export(tmp_path / "table.parquet")
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("table.hps", "table.parquet")] == [mode, mode]


KILLED = """
import os, signal, sys
from pathlib import Path
from heterps.store.replacing import replacing

with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_leftovers_of_killed_writers_go_with_the_next_save(tmp_path: Path) -> None:
    for name in ("a", "b"):
        subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / name)], check=False)
    assert len(names_in(tmp_path)) == 2
    (tmp_path / ".a.of-somebody").touch()
    with replacing(tmp_path / "a") as file:
        file.write(b"whole")
    left = names_in(tmp_path) - {"a", ".a.of-somebody"}
    assert len(left) == 1, left
    assert left.pop().startswith(".b.")


def test_drafts_of_living_writers_stay(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replacing(path) as first:
        with replacing(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
        first.write(b"first")
    assert path.read_bytes() == b"first"
    assert names_in(tmp_path) == {"a"}


def test_a_writer_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    with pytest.raises(HeterPSError, match="could not be written: no space"), replacing(path):
        raise OSError("no space")
    assert path.read_bytes() == b"before"
    assert names_in(tmp_path) == {"a"}
