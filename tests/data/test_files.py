"""Where files lie, and what happens when they cannot be read."""

from __future__ import annotations

import bz2
import gzip
import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.data import Criteo, Parquet, prefetch
from heterps.errors import HeterPSError, InvalidInput
from tests.data.reference import criteo_lines, rows_of

LINES = criteo_lines(300, seed=0)
TEXT = ("\n".join(LINES) + "\n").encode()


def count(source, **options) -> int:
    return len(rows_of(source.reader(**{"batch_size": 64, **options})))


def test_paths_globs_directories_and_lists(tmp_path: Path):
    for i, name in enumerate(["b.tsv", "a.tsv", "sub/c.tsv", "_SUCCESS", ".hidden"]):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("\n".join(LINES[10 * i : 10 * i + 10]))
    assert [file.name for file in Criteo(str(tmp_path)).files] == ["a.tsv", "b.tsv", "c.tsv"]
    assert count(Criteo(str(tmp_path / "*.tsv"))) == 20
    assert count(Criteo(str(tmp_path / "**/*.tsv"))) == 30
    assert count(Criteo(f"file://{tmp_path}/a.tsv")) == 10
    both = [str(tmp_path / "b.tsv"), str(tmp_path / "a.tsv")]
    assert [file.name for file in Criteo(both).files] == ["b.tsv", "a.tsv"]


def test_any_file_system_of_fsspec():
    fs = fsspec.filesystem("memory")
    fs.pipe("/heterps-test/day.tsv", TEXT)
    fs.pipe("/heterps-test/day.gz", gzip.compress(TEXT))
    with fs.open("/heterps-test/a.parquet", "wb") as file:
        pq.write_table(pa.table({"n": list(range(50))}), file)
    try:
        assert count(Criteo("memory://heterps-test/day.*")) == 600
        assert count(Parquet("memory://heterps-test/a.parquet", dense=["n"])) == 50
    finally:
        fs.rm("/heterps-test", recursive=True)


def test_compressed_in_several_ways(tmp_path: Path):
    (tmp_path / "a.bz2").write_bytes(bz2.compress(TEXT))
    (tmp_path / "b.gz").write_bytes(gzip.compress(TEXT[:5000]) + gzip.compress(TEXT[5000:]))
    (tmp_path / "c.tsv").write_bytes(TEXT)
    assert count(Criteo(str(tmp_path / "*"), shuffle_bytes=3000)) == 900


@pytest.mark.parametrize(
    ("path", "says"),
    [("nowhere/day.tsv", "no such file: nowhere/day.tsv"), ("nowhere/*.tsv", r"no such file: nowhere/\*.tsv"),
     ([], "path is a path"), ("", "path is a path"), ([3], "path is a path"), ("nosuch://a", "nosuch")],
)  # fmt: skip
def test_files_that_are_not_there(path, says: str):
    with pytest.raises(InvalidInput, match=says):
        count(Criteo(path))


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_truncated_gz_is_named(tmp_path: Path, shuffle: bool):
    path = tmp_path / "day.gz"
    path.write_bytes(gzip.compress(TEXT)[:-2000])
    with pytest.raises(HeterPSError, match=r"day.gz cannot be read: Compressed file ended"):
        count(Criteo(str(path), shuffle_bytes=10_000), shuffle=shuffle)
    with (
        pytest.raises(HeterPSError, match=r"day.gz cannot be read"),
        prefetch(Criteo(str(path), shuffle_bytes=10_000).reader(batch_size=10)) as reader,
    ):
        list(reader)


def test_what_is_no_gz_is_named(tmp_path: Path):
    (tmp_path / "day.gz").write_bytes(TEXT)
    with pytest.raises(HeterPSError, match=r"day.gz cannot be read: Not a gzipped file"):
        count(Criteo(str(tmp_path / "day.gz")))
    broken = bytearray(gzip.compress(TEXT))
    broken[len(broken) // 2 :] = b"\xff" * (len(broken) - len(broken) // 2)
    (tmp_path / "day.gz").write_bytes(bytes(broken))
    with pytest.raises(HeterPSError, match=r"day.gz cannot be read"):
        count(Criteo(str(tmp_path / "day.gz"), max_bad_rows=10))


def test_an_unreadable_parquet_is_named(tmp_path: Path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": [float(i * i % 977) for i in range(20_000)]}), path, row_group_size=5000)
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    with pytest.raises(HeterPSError, match=r"a.parquet cannot be read"):
        count(Parquet(str(path), dense=["n"]))
    path.write_bytes(data[:50] + b"\xff" * 3000 + data[3050:])
    with pytest.raises(HeterPSError, match=r"a.parquet cannot be read"):
        count(Parquet(str(path), dense=["n"]))


def test_a_file_that_vanishes_is_named(tmp_path: Path):
    path = tmp_path / "day.tsv"
    path.write_bytes(TEXT)
    source = Criteo(str(path))
    reader = source.reader(batch_size=10)
    path.unlink()
    with pytest.raises(HeterPSError, match=r"day.tsv cannot be read"):
        next(reader)


def test_a_position_is_refused_when_files_changed(tmp_path: Path):
    path = tmp_path / "day.tsv"
    path.write_bytes(TEXT)
    position = next(Criteo(str(path)).reader(batch_size=10)).position
    moved = tmp_path / "moved"
    moved.mkdir()
    (moved / "day.tsv").write_bytes(TEXT)
    assert next(Criteo(str(moved / "day.tsv")).reader(batch_size=10, position=position)).batch
    path.write_bytes(TEXT + TEXT)
    with pytest.raises(InvalidInput, match="the same files"):
        Criteo(str(path)).reader(batch_size=10, position=position)


_READ_ALL = """
import resource, sys
from heterps.data import Criteo, prefetch
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
for path in sys.argv[1:]:
    rows = 0
    with prefetch(Criteo(path, shuffle_bytes=1 << 20).reader(batch_size=4096)) as reader:
        for read in reader:
            rows += len(read.batch["label"])
    print(rows, peak())
"""


def test_memory_stays_bounded(tmp_path: Path):
    """A file of 64 times the text that is shuffled together costs hardly more than one of four times."""
    once = ("\n".join(LINES * 14) + "\n").encode()[:]
    for name, times in (("small", 4), ("large", 64)):
        (tmp_path / f"{name}.tsv").write_bytes(once * times)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(once, 1) * times)
    paths = [str(tmp_path / name) for name in ("small.tsv", "small.gz", "large.tsv", "large.gz")]
    done = subprocess.run(
        [sys.executable, "-c", _READ_ALL, *paths], capture_output=True, text=True, check=True, timeout=300
    )
    (rows, _), (_, before), *large = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert rows == 4 * 14 * 300
    assert [rows for rows, _ in large] == [64 * 14 * 300] * 2
    assert large[-1][1] - before < 24, "megabytes; the decoded rows alone are 70"
