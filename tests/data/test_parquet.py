"""Parquet columns of every type that may hold numbers, ids and lists of ids."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.data import Parquet, hash_id
from heterps.errors import HeterPSError, InvalidInput
from tests.data.reference import float32, rows_of


def write(path: Path, columns: dict[str, pa.Array], **options) -> str:
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def read(source: Parquet, **options) -> list:
    return rows_of(source.reader(**{"batch_size": 7, "shuffle": False, **options}))


WORDS = ["a", None, "", "ü" * 9, "a"]
IDS = [hash_id("c", word or "") for word in WORDS]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(WORDS),
        pa.array(WORDS, pa.large_string()),
        pa.array(WORDS, pa.string_view()),
        pa.array([word and word.encode() for word in WORDS], pa.binary()),
        pa.array(WORDS).dictionary_encode(),
        pa.array(["x", *WORDS, "y"]).slice(1, 5),
        pa.array(["x", *WORDS]).dictionary_encode().slice(1, 5),
    ],
    ids=lambda array: str(array.type),
)
def test_strings_are_hashed_whatever_their_type(tmp_path: Path, array: pa.Array):
    rows = read(Parquet(write(tmp_path / "a.parquet", {"c": array}), sparse=["c"]))
    assert [ids[0] for (ids,) in rows] == IDS


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.uint16(), pa.uint64()], ids=str)
def test_whole_numbers_are_hashed_or_kept(tmp_path: Path, kind: pa.DataType):
    path = write(tmp_path / "a.parquet", {"c": pa.array([1, None, 127], kind)})
    assert [ids[0] for (ids,) in read(Parquet(path, sparse=["c"]))] == [hash_id("c", x) for x in (1, "", 127)]
    assert [ids[0] for (ids,) in read(Parquet(path, sparse=["c"], hash=False))] == [1, hash_id("c", ""), 127]


def test_large_unsigned_numbers_have_digits_too(tmp_path: Path):
    path = write(tmp_path / "a.parquet", {"c": pa.array([2**64 - 1], pa.uint64())})
    assert read(Parquet(path, sparse=["c"])) == [((hash_id("c", 2**64 - 1),),)]


def test_ids_beyond_int64_make_a_row_malformed(tmp_path: Path):
    numbers = [1, 2**63 - 1, 2**63, None, 2**64 - 1, 5]
    lists = [[1, 2], [], None, [2**63 - 1, None], [7], [3, 2**63]]
    columns = {"c": pa.array(numbers, pa.uint64()), "t": pa.array(lists, pa.list_(pa.uint64()))}
    for path in (
        write(tmp_path / "a.parquet", columns, row_group_size=4),
        write(tmp_path / "b.parquet", {**columns, "c": columns["c"].dictionary_encode()}),
    ):
        source = Parquet(path, sparse=["c"], multi=["t"], hash=False, max_bad_rows=3, shuffle_rows=2)
        kept = [((1,), (1, 2)), ((2**63 - 1,), ()), ((hash_id("c", ""),), (2**63 - 1,))]
        assert read(source) == kept
        for column, at in {"ids": 0, "t": 1}.items():
            assert read(source, columns=[column]) == [(row[at],) for row in kept], "whatever else is read"
        with pytest.raises(HeterPSError, match=r"parquet, row 6: .*hash: false.*more than max_bad_rows=2"):
            read(replace(source, max_bad_rows=2))
        with pytest.raises(HeterPSError, match=r"parquet, row 3: "):
            read(replace(source, max_bad_rows=0))


def test_files_may_differ_in_the_type_of_their_ids(tmp_path: Path):
    paths = [
        write(tmp_path / "a.parquet", {"c": pa.array([2**63, 4], pa.uint64())}),
        write(tmp_path / "b.parquet", {"c": pa.array([True, False])}),
        write(tmp_path / "c.parquet", {"c": pa.array([-1], pa.int64())}),
    ]
    assert read(Parquet(paths, sparse=["c"], hash=False, max_bad_rows=1)) == [((4,),), ((1,),), ((0,),), ((-1,),)]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
@pytest.mark.parametrize("wrap", [pa.list_, pa.large_list], ids=["list", "large_list"])
def test_lists_become_bags(tmp_path: Path, wrap, kind: pa.DataType):
    lists = [["a", "b"], None, [], [None, "c", None], ["a"]]
    path = write(
        tmp_path / "a.parquet", {"tags": pa.array(lists, wrap(pa.string())).cast(wrap(kind))}, row_group_size=3
    )
    expected = [(tuple(hash_id("tags", tag) for tag in row or [] if tag),) for row in lists]
    for rows in (1, 2, 100):
        assert read(Parquet(path, multi=["tags"], shuffle_rows=rows)) == expected


def test_lists_of_numbers(tmp_path: Path):
    path = write(tmp_path / "a.parquet", {"tags": pa.array([[3, 4], [], [5]])})
    assert read(Parquet(path, multi=["tags"], hash=False)) == [((3, 4),), ((),), ((5,),)]
    fixed = write(tmp_path / "b.parquet", {"tags": pa.array([[3, 4], [5, 6]], pa.list_(pa.int32(), 2))})
    assert read(Parquet(fixed, multi=["tags"], hash=False)) == [((3, 4),), ((5, 6),)]


def test_numbers_missing_and_transformed(tmp_path: Path):
    columns = {"x": pa.array([1.5, None, math.nan, -2.0]), "n": pa.array([3, None, 0, -1], pa.int16()),
               "b": pa.array([True, False, None, True]), "y": pa.array([0, 1, 1, 0], pa.uint8())}  # fmt: skip
    path = write(tmp_path / "a.parquet", columns)
    rows = read(Parquet(path, label="y", dense=["x", "n", "b"], missing=9))
    assert rows == [((1.5, 3, 1), 0), ((9, 9, 0), 1), ((9, 0, 9), 1), ((-2, -1, 1), 0)]
    ((first, _), *_, (last, _)) = read(Parquet(path, label="y", dense=["x", "n", "b"], transform="log"))
    assert first == pytest.approx([math.log1p(x) for x in (1.5, 3, 1)])
    assert last == (0, 0, float32(math.log(2)))


def test_malformed_rows_are_named_and_counted(tmp_path: Path):
    labels = [1.0] * 25
    labels[13], labels[21] = None, math.inf
    dense = [0.0] * 25
    dense[4] = -math.inf
    path = write(tmp_path / "a.parquet", {"y": pa.array(labels), "x": pa.array(dense), "n": pa.array(range(25))},
                 row_group_size=10)  # fmt: skip
    options = {"label": "y", "dense": ["x", "n"], "shuffle_rows": 3}
    with pytest.raises(HeterPSError, match=r"a.parquet, row 5: .*max_bad_rows"):
        read(Parquet(path, **options))
    with pytest.raises(HeterPSError, match=r"a.parquet, row 22: .*more than max_bad_rows=2"):
        read(Parquet(path, **options, max_bad_rows=2))
    for shuffle in (False, True):
        for fraction in (0, 0.5):
            sides = Parquet(path, **options, max_bad_rows=3).split(fraction)
            rows = [row for side in sides for row in read(side, shuffle=shuffle)]
            assert sorted(row[0][1] for row in rows) == [i for i in range(25) if i not in (4, 13, 21)]
    reader = Parquet(path, **options, max_bad_rows=3).reader(batch_size=2)
    assert len(rows_of(reader)) == 22
    assert reader.skipped == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"label": "c"}, "column 'c' is string; label columns are numbers"),
        ({"dense": ["c"]}, "column 'c' is string; dense columns are numbers"),
        ({"sparse": ["x"]}, "column 'x' is double; sparse columns are strings or whole numbers"),
        ({"sparse": ["c"], "hash": False}, r"column 'c' is string; sparse columns are whole numbers \(hash: false\)"),
        ({"multi": ["c"]}, "column 'c' is string; multi columns are lists"),
        ({"sparse": ["t"]}, "column 't' is list<.*>; sparse columns are"),
        ({"sparse": ["colour"]}, "has no column 'colour'"),
        ({"sparse": ["twice"]}, "has 2 columns 'twice'"),
    ],
)
def test_columns_that_do_not_fit(tmp_path: Path, options: dict, says: str):
    columns = {"c": ["a"], "x": [1.5], "t": [["a"]]}
    table = pa.table(columns).append_column("twice", [["a"]]).append_column("twice", [["b"]])
    pq.write_table(table, path := str(tmp_path / "a.parquet"))
    with pytest.raises(InvalidInput, match=says):
        read(Parquet(path, **options))


def test_row_groups_of_every_size(tmp_path: Path):
    paths = [write(tmp_path / f"{size}.parquet", {"n": pa.array(np.arange(40.0) + 100 * size)}, row_group_size=size)
             for size in (1, 7, 64)]  # fmt: skip
    for shuffle_rows in (1, 5, 40, 1000):
        for shards in (1, 3, 130):
            source = Parquet(paths, dense=["n"], shuffle_rows=shuffle_rows)
            rows = [row for i in range(shards) for row in read(source, shuffle=True, shard=(i, shards))]
            assert sorted(row[0][0] for row in rows) == sorted(x + 100.0 * s for x in range(40) for s in (1, 7, 64))


def test_files_without_rows(tmp_path: Path):
    path = write(tmp_path / "a.parquet", {"n": pa.array([], pa.float32())})
    assert read(Parquet(path, dense=["n"])) == []


def test_only_what_is_needed_is_read(tmp_path: Path):
    """Always what can make a row malformed: numbers, and with `hash: false` ids that may be no int64."""
    columns = {"y": pa.array([0.0, 1.0, 1.0, 0.0]), "x": pa.array([1.0, math.inf, 2.0, 3.0]),
               "c": pa.array([1, 2, 3, 2**64 - 1], pa.uint64()), "t": pa.array([[1], [], [2, 3], []])}  # fmt: skip
    path = write(tmp_path / "a.parquet", columns)
    source = Parquet(path, label="y", dense=["x"], sparse=["c"], multi=["t"], hash=False, max_bad_rows=2)
    assert source.needed(["label"]) == ["y", "x", "c"]
    assert source.needed(["ids", "dense"]) == ["y", "x", "c"]
    assert replace(source, hash=True).needed(["label"]) == ["y", "x"]
    with source.reader(batch_size=7, shuffle=False, columns=["label", "t"]) as reader:
        assert rows_of(reader) == [(0, (1,)), (1, (2, 3))]
        assert reader.skipped == 2


def test_a_large_row_group_is_one_section(tmp_path: Path):
    path = write(tmp_path / "a.parquet", {"n": pa.array(np.arange(50.0))}, row_group_size=20)
    source = Parquet(path, dense=["n"], shuffle_rows=8)
    way = source.make_pass(batch_size=5, seed=0, shuffle=False, shard=(0, 1), columns=["dense"])
    assert list(way.sections(0, ())) == [(0,), (3,), (6,)]
    assert list(way.sections(0, (1,))) == [(1,), (3,), (6,)]
    assert [part.last for part in way.parts(0, ())] == [False, False, True, False, False, True, False, True]
