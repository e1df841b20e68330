"""Criteo and CSV against plain Python on random rows, and rows that are malformed."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps.data import Criteo, Csv, hash_id
from heterps.data.lines import read_lines
from heterps.errors import HeterPSError, InvalidInput
from tests.data.reference import criteo_lines, criteo_row, float32, rows_of, rows_of_batch

fresh = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

words = st.text(st.characters(exclude_characters="\t\r\n", exclude_categories=["Cs"]), max_size=20)
criteo_line = st.builds(
    lambda label, counts, categories: "\t".join([label, *counts, *categories]),
    st.sampled_from("01"),
    st.lists(st.one_of(st.just(""), st.integers(-(2**63), 2**63 - 1).map(str)), min_size=13, max_size=13),
    st.lists(st.one_of(st.just(""), words), min_size=26, max_size=26),
)


def read(source, **options) -> list:
    return rows_of(source.reader(**{"batch_size": 7, "shuffle": False, **options}))


def write(path: Path, text: str) -> str:
    path.write_bytes(text.encode())
    return str(path)


@fresh
@given(lines=st.lists(criteo_line, max_size=12), end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(),
       block=st.integers(1, 3000))  # fmt: skip
def test_criteo_is_read_as_plain_python_reads_it(tmp_path: Path, lines: list[str], end: str, last: bool, block: int):
    path = write(tmp_path / "day.tsv", end.join(lines) + (end if last and lines else ""))
    rows = read(Criteo(path, shuffle_bytes=block))
    assert len(rows) == len(lines)
    for row, line in zip(rows, lines, strict=True):
        dense, *rest = criteo_row(line)
        assert row[0] == pytest.approx(dense, rel=1e-6)
        assert list(row[1:]) == rest


def test_dense_values_as_they_are_and_another_stand_in(tmp_path: Path):
    line = "\t".join(["1", "-7", "", "5", *[""] * 36])
    path = write(tmp_path / "day.tsv", line)
    ((dense, ids, label),) = read(Criteo(path, transform="none", missing=-1))
    assert dense == (-7.0, -1.0, 5.0, *[-1.0] * 10)
    assert label == 1.0
    assert ids == tuple(hash_id(f"C{i}", "") for i in range(1, 27))
    ((dense, _, _),) = read(Criteo(path, missing=0.5))
    assert dense[:3] == (0.0, 0.5, float32(math.log1p(5)))


GOOD = "\t".join(["0", *"1234567890123", *"abcdefghijklmnopqrstuvwxyz"])
BAD = {
    "39 fields, not 40": GOOD.rpartition("\t")[0],
    "41 fields, not 40": GOOD + "\t",
    "1 fields, not 40": " ",
    "column 'label' (the label) is not 0 or 1: '2'": "2" + GOOD[1:],
    "column 'label' (the label) is not 0 or 1: ''": GOOD[1:],
    "I1 is not a whole number: '1.5'": GOOD.replace("\t1\t", "\t1.5\t", 1),
    "I2 is not a whole number: 'x'": GOOD.replace("\t2\t", "\tx\t", 1),
    "I3 is not a whole number: '9223372036854775808'": GOOD.replace("\t3\t", f"\t{2**63}\t", 1),
    "I13 is not a whole number: '+-3'": GOOD.replace("\t3\ta", "\t+-3\ta", 1),
}


@pytest.mark.parametrize("says", BAD)
@pytest.mark.parametrize("ending", ["tsv", "gz"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_malformed_row_is_named_by_file_and_line(tmp_path: Path, says: str, ending: str, shuffle: bool):
    path = tmp_path / f"day.{ending}"
    text = "\n".join([GOOD, "", GOOD, BAD[says], GOOD])
    path.write_bytes(text.encode() if ending == "tsv" else gzip.compress(text.encode()))
    with pytest.raises(HeterPSError) as error:
        read(Criteo(str(path), shuffle_bytes=200), shuffle=shuffle)
    assert f"day.{ending}, line 4: " in str(error.value)
    assert says in str(error.value)
    with Criteo(str(path), max_bad_rows=1, shuffle_bytes=200).reader(batch_size=2, epochs=3) as reader:
        assert len(rows_of(reader)) == 9
        assert reader.skipped == 3, "one in each epoch; the limit is for one"


def test_the_row_beyond_the_limit_is_named(tmp_path: Path):
    lines = [GOOD, "x", GOOD, "y", GOOD, "z", GOOD]
    path = write(tmp_path / "day.tsv", "\n".join(lines))
    with pytest.raises(HeterPSError, match=r"line 6: .*more than max_bad_rows=2"):
        read(Criteo(path, max_bad_rows=2))
    assert len(read(Criteo(path, max_bad_rows=3))) == 4


@pytest.mark.parametrize("ending", ["tsv", "gz"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_skipped_rows_are_counted_on_after_resuming(tmp_path: Path, shuffle: bool, ending: str):
    lines = [line if i % 5 else "bad" for i, line in enumerate(criteo_lines(100, seed=0))]
    path = tmp_path / f"day.{ending}"
    path.write_bytes("\n".join(lines).encode() if ending == "tsv" else gzip.compress("\n".join(lines).encode()))
    source = Criteo(str(path), max_bad_rows=20, shuffle_bytes=5000)
    unbroken = list(source.reader(batch_size=3, epochs=2, shuffle=shuffle))
    assert len(unbroken) == 2 * 27
    for at in range(0, len(unbroken), 5):
        reader = source.reader(batch_size=3, epochs=2, shuffle=shuffle, position=unbroken[at].position)
        assert rows_of(reader) == rows_of(unbroken[at + 1 :])
        assert reader.skipped == 40
        strict = Criteo(str(path), max_bad_rows=19, shuffle_bytes=5000)
        with pytest.raises(HeterPSError, match="max_bad_rows=19"):
            list(strict.reader(batch_size=3, epochs=2, shuffle=shuffle, position=unbroken[at].position))


field = st.text(st.sampled_from('ab,|" ü\t'), max_size=8)
numbers = st.one_of(st.just(""), st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr))


@fresh
@given(rows=st.lists(st.tuples(st.integers(0, 1), numbers, field, field), max_size=10), tabs=st.booleans(),
       end=st.sampled_from(["\n", "\r\n"]), always=st.booleans(), block=st.integers(1, 300))  # fmt: skip
def test_csv_is_read_as_plain_python_reads_it(tmp_path: Path, rows, tabs: bool, end: str, always: bool, block: int):
    separator = "\t" if tabs else ","
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if always else csv.QUOTE_MINIMAL
    writer = csv.writer(text, delimiter=separator, lineterminator=end, quoting=quoting)
    writer.writerow(["clicked", "price, net", "item", "tags"])
    writer.writerows(rows)
    path = write(tmp_path / "a.csv", text.getvalue())
    source = Csv(path, label="clicked", dense=["price, net"], sparse=["item"], multi=["tags"], separator=separator,
                 shuffle_bytes=block)  # fmt: skip
    expected = [
        ((float32(float(price or 0)),), (hash_id("item", item),), float(label),
         tuple(hash_id("tags", tag) for tag in tags.split("|") if tag))
        for label, price, item, tags in rows
    ]  # fmt: skip
    assert read(source) == expected


def test_csv_without_a_header_a_label_or_quotes(tmp_path: Path):
    path = write(tmp_path / "a.csv", '3;"x;1\n4;"y";\n')
    source = Csv(path, column_names=["a", "b", "c"], sparse=["b"], dense=["c"], separator=";", quotes=False)
    assert source.columns == ("dense", "ids")
    assert read(source) == [((1.0,), (hash_id("b", '"x'),)), ((0.0,), (hash_id("b", '"y"'),))]


def test_csv_ids_as_they_are(tmp_path: Path):
    path = write(tmp_path / "a.csv", "\ufeffuser,tags\n12,1|-2\n,\n")
    source = Csv(path, sparse=["user"], multi=["tags"], hash=False)
    assert read(source) == [((12,), (1, -2)), ((hash_id("user", ""),), ())]
    for text, says in {"user,tags\nx,1\n": "user is not", "user,tags\n1,1|x\n": "tags is not"}.items():
        with pytest.raises(HeterPSError, match=f"line 2: {says} a whole number, as hash: false"):
            read(Csv(write(tmp_path / "b.csv", text), sparse=["user"], multi=["tags"], hash=False))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("1,2", "has 2 fields, not 3"),
        ("x,2,a", "column 'y' (the label) is not a finite number: 'x'"),
        (",2,a", "column 'y' (the label) is not a finite number: ''"),
        ("nan,2,a", "column 'y' (the label) is not a finite number"),
        ("1,inf,a", "p is not a finite number: 'inf'"),
        ("1,1e999,a", "p is not a finite number"),
        ("1,0x10,a", "p is not a finite number"),
        ('1,2,"a', "c: a quote that does not end"),
        ('1,2,"a"b', "c: a quote that does not end, or something behind it"),
    ],
)
def test_malformed_csv_rows(tmp_path: Path, line: str, says: str):
    path = write(tmp_path / "a.csv", f"y,p,c\n1,2,a\n{line}\n0,1,b\n")
    with pytest.raises(HeterPSError) as error:
        read(Csv(path, label="y", dense=["p"], sparse=["c"]))
    assert f"a.csv, line 3: {says}" in str(error.value)
    assert [row[2] for row in read(Csv(path, label="y", dense=["p"], sparse=["c"], max_bad_rows=1))] == [1.0, 0.0]


def test_a_bad_row_takes_its_bags_along(tmp_path: Path):
    path = write(tmp_path / "a.csv", "tags,y\na|b,1\nc|d,x\ne,0\n")
    rows = read(Csv(path, label="y", multi=["tags"], max_bad_rows=1))
    assert rows == [(1.0, (hash_id("tags", "a"), hash_id("tags", "b"))), (0.0, (hash_id("tags", "e"),))]


def test_empty_files_have_no_rows(tmp_path: Path):
    empty, header = write(tmp_path / "a.csv", ""), write(tmp_path / "b.csv", "tags,y")
    full = write(tmp_path / "c.csv", "y,tags\n1,a\n")
    assert read(Csv([empty, header], label="y", multi=["tags"])) == []
    assert len(read(Csv([empty, header, full], label="y", multi=["tags"]), shuffle=True)) == 1
    assert read(Csv([empty, header], multi=["tags"])) == []
    assert read(Criteo(write(tmp_path / "d.tsv", "\n\r\n\n"))) == []


def test_columns_that_are_not_there(tmp_path: Path):
    path = write(tmp_path / "a.csv", "label,price,item\n1,2,3\n")
    with pytest.raises(InvalidInput, match=r"a.csv has no column 'prize'. Did you mean 'price'\?"):
        read(Csv(path, label="label", dense=["prize"]))
    with pytest.raises(InvalidInput, match="column_names has no column 'b'"):
        Csv(path, column_names=["a"], sparse=["b"])


def test_columns_that_are_there_twice(tmp_path: Path):
    path = write(tmp_path / "a.csv", "label,a,b,b\n1,2,3,4\n")
    with pytest.raises(InvalidInput, match=r"a.csv has 2 columns 'b'; name each column once"):
        read(Csv(path, label="label", dense=["b"]))
    with pytest.raises(InvalidInput, match="column_names has 2 columns 'b'"):
        Csv(path, column_names=["a", "b", "b"], sparse=["b"])
    assert read(Csv(path, label="label", dense=["a"])) == [((2.0,), 1.0)], "nobody reads the others"


def test_headers_that_are_no_text(tmp_path: Path):
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe,a\n")
    with pytest.raises(InvalidInput, match="not UTF-8"):
        read(Csv(str(tmp_path / "b.csv"), label="a"))


class Memory:
    """Bytes by offset, as `read_lines` takes them."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def at(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]

    def close(self) -> None: ...


@given(text=st.text("a\n", max_size=60).map(str.encode), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_every_line_starts_in_one_stretch(text: bytes, cuts: list[int]):
    bounds = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    found = []
    for begin, end in itertools.pairwise(bounds):
        lines = read_lines(Memory(text), begin, end)  # type: ignore[arg-type]
        assert text[lines.offset :].startswith(lines.text[lines.begin :])
        found += lines.text[lines.begin :].splitlines(keepends=True)
    assert found == text.splitlines(keepends=True)


def test_a_file_without_lines_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("heterps.data.lines.MOST_LINE_BYTES", 100_000)
    path = write(tmp_path / "day.tsv", "x" * 500_000)
    with pytest.raises(HeterPSError, match=r"day.tsv: a line of more than 100000 bytes .* is it text"):
        read(Criteo(path, shuffle_bytes=1000))


def test_batches_of_a_reader_do_not_share_what_changes(tmp_path: Path):
    path = write(tmp_path / "day.tsv", "\n".join(criteo_lines(20, seed=0)))
    reads = list(Criteo(path).reader(batch_size=6))
    before = [rows_of_batch(read.batch) for read in reads]
    assert [rows_of_batch(read.batch) for read in reads] == before == [
        rows_of_batch(read.batch) for read in Criteo(path).reader(batch_size=6)
    ]  # fmt: skip


@pytest.mark.parametrize("ending", ["tsv", "gz"])
def test_what_fits_together_is_mixed_as_a_whole_and_anew_each_epoch(tmp_path: Path, ending: str):
    text = "\n".join(criteo_lines(400, seed=0)).encode()
    (tmp_path / f"day.{ending}").write_bytes(text if ending == "tsv" else gzip.compress(text))
    rows = read(Criteo(str(tmp_path / f"day.{ending}"), transform="none"), shuffle=True, epochs=2)
    orders = [[row[0][0] for row in rows[:400]], [row[0][0] for row in rows[400:]]]
    for one, other in (orders, (orders[0], sorted(orders[0])), (orders[1], sorted(orders[1]))):
        assert sum(a == b for a, b in zip(one, other, strict=True)) < 10, "one is expected to stay by chance"
        assert sum(abs(a - b) for a, b in zip(one, other, strict=True)) / 400 > 100, "133 is expected"
