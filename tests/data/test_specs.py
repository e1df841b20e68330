"""Sources from the `data` of a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.data import Criteo, Csv, Parquet, Source, Synthetic, make_source
from heterps.errors import InvalidInput


def test_each_kind_by_its_name(tmp_path: Path):
    assert make_source({"source": "synthetic", "rows": 200000}) == Synthetic(rows=200_000)
    assert make_source({"source": "criteo", "path": "day_*.gz"}) == Criteo("day_*.gz")
    assert make_source({"source": "csv", "path": "a", "label": "y", "dense": ["x"]}) == Csv("a", label="y", dense=["x"])
    table = {"label": "y", "sparse": ["c"], "multi": ["t"], "hash": True}
    assert make_source({"source": "parquet", "path": ["a", "b"], **table}) == Parquet(["a", "b"], **table)


def test_ours_are_sources():
    sources: list[Source] = [Synthetic(), Criteo("a"), Csv("a", label="y"), Parquet("a", label="y")]
    assert [source.name for source in sources] == ["synthetic", "criteo", "csv", "parquet"]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ({"source": "sinthetic"}, r"source is one of .*, not 'sinthetic'. Did you mean 'synthetic'\?"),
        ({}, "source is one of synthetic, criteo, parquet, csv, not None"),
        (None, "data is a mapping"),
        ("synthetic", "data is a mapping"),
        ({"source": "synthetic", "row": 3}, r"synthetic has no option 'row'. Did you mean 'rows'\?"),
        ({"source": "synthetic", "splits": ()}, "has no option 'splits'"),
        ({"source": "synthetic", "max_bad_rows": 1}, "has no option 'max_bad_rows'"),
        ({"source": "criteo", "pth": "a"}, r"has no option 'pth'. Did you mean 'path'\?"),
        ({"source": "criteo"}, "criteo needs path"),
        ({"source": "criteo", "path": "a", "transform": "logs"}, r"transform is one of none, log, not 'logs'. Did you"),
        ({"source": "criteo", "path": "a", "max_bad_rows": -1}, "max_bad_rows is a whole number of at least 0, not -1"),
        ({"source": "criteo", "path": "a", "missing": "x"}, "missing is a number, not 'x'"),
        ({"source": "criteo", "path": "a", "shuffle_bytes": 0}, "shuffle_bytes is a whole number of at least 1"),
        ({"source": "parquet", "path": "a"}, "name the columns to read"),
        ({"source": "parquet", "path": "a", "dense": "x"}, "dense is a list of columns, not 'x'"),
        ({"source": "parquet", "path": "a", "dense": ["x"], "sparse": ["x"]}, "columns declared twice: x"),
        ({"source": "parquet", "path": "a", "multi": ["ids"]}, "another name than ids"),
        ({"source": "parquet", "path": "a", "label": "y", "shuffle_rows": 0}, "shuffle_rows is a whole number"),
        ({"source": "csv", "path": "a", "label": "y", "separator": ";;"}, "separator is one ASCII character"),
        ({"source": "csv", "path": "a", "label": "y", "multi_separator": ","}, "separator and multi_separator differ"),
    ],
)
def test_wrong_specs(spec, says: str):
    with pytest.raises(InvalidInput, match=says):
        make_source(spec)
