"""A source of every kind, each of a few hundred rows that all differ, in many small pieces."""

from __future__ import annotations

import gzip
import random
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heterps.data import Criteo, Csv, Parquet, Source, Synthetic
from tests.data.reference import Row, criteo_lines, criteo_row, float32, reference_id


@dataclass(frozen=True)
class Known:
    source: Source
    rows: list[Row] | None
    """What it holds, in the order of the files; None if only the source knows."""
    count: int


def table(count: int, seed: int) -> list[dict[str, object]]:
    rng = random.Random(seed)
    words = ["a", "b", "red, green", 'a "quote"', "", "ü", "x" * 20]
    return [
        {"clicked": float(rng.randint(0, 1)), "number": i, "price": rng.choice([None, 0.5, -2.25, 1e3]),
         "item": rng.choice(words), "user": rng.randint(-5, 10**12),
         "tags": [rng.choice("abcd") for _ in range(rng.randint(0, 4))]}
        for i in range(count)
    ]  # fmt: skip


def table_row(row: dict) -> Row:
    """(dense, ids, label, tags)"""
    dense = (float32(row["number"]), float32(row["price"]) if row["price"] is not None else -1.0)
    ids = (reference_id("item", row["item"]), reference_id("user", str(row["user"])))
    return dense, ids, row["clicked"], tuple(reference_id("tags", tag) for tag in row["tags"])


TABLE = {"label": "clicked", "dense": ["number", "price"], "sparse": ["item", "user"], "multi": ["tags"], "missing": -1}


def csv_text(rows: list[dict], order: list[str]) -> str:
    def text(value: object) -> str:
        if isinstance(value, list):
            return "|".join(value)
        plain = "" if value is None else str(value)
        return '"' + plain.replace('"', '""') + '"' if '"' in plain or "," in plain else plain

    return "\n".join([",".join(order), *(",".join(text(row[name]) for name in order) for row in rows)]) + "\n"


def make_known(directory: Path) -> dict[str, Known]:
    lines = [criteo_lines(count, seed=count, first=1000 * count) for count in (211, 3, 97)]
    plain, zipped = directory / "plain", directory / "zipped"
    for folder in (plain, zipped):
        folder.mkdir()
    (plain / "day_0.tsv").write_text("\n".join(lines[0]) + "\n")
    (plain / "day_1.tsv").write_text("\r\n".join(lines[1]))
    (plain / "day_2.tsv").write_text("\n" + "\n\n".join(lines[2]))
    for i in range(3):
        with gzip.open(zipped / f"day_{i}.gz", "wt") as file:
            file.write("\n".join(lines[i]))
    criteo = [criteo_row(line) for some in lines for line in some]
    rows = table(180, seed=1)
    columns = ["clicked", "number", "price", "item", "user", "tags"]
    (directory / "a.csv").write_text(csv_text(rows[:100], columns))
    (directory / "b.csv").write_text(csv_text(rows[100:], columns[::-1]))
    schema = pa.schema({"clicked": pa.float32(), "number": pa.int32(), "price": pa.float64(), "item": pa.string(),
                        "user": pa.int64(), "tags": pa.list_(pa.string())})  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows[:130], schema), directory / "a.parquet", row_group_size=37)
    pq.write_table(pa.Table.from_pylist(rows[130:], schema), directory / "b.parquet", row_group_size=1000)
    expected = [table_row(row) for row in rows]
    return {
        "synthetic": Known(Synthetic(rows=301), None, 301),
        "synthetic multi": Known(Synthetic(rows=150, multi=["tags", "words"], slots=6, dense=0, ids=5000), None, 150),
        "synthetic in memory": Known(Synthetic(rows=301, in_memory=True, id_space="dense"), None, 301),
        "criteo": Known(Criteo(str(plain / "day_*.tsv"), shuffle_bytes=20_000), criteo, 311),
        "criteo in tiny blocks": Known(Criteo(str(plain), shuffle_bytes=800), criteo, 311),
        "criteo gz": Known(Criteo(str(zipped), shuffle_bytes=9_000), criteo, 311),
        "criteo one gz": Known(Criteo(str(zipped / "day_0.gz"), shuffle_bytes=9_000), criteo[:211], 211),
        "csv": Known(
            Csv([str(directory / "a.csv"), str(directory / "b.csv")], shuffle_bytes=999, **TABLE), expected, 180
        ),
        "parquet": Known(Parquet(str(directory / "*.parquet"), shuffle_rows=50, **TABLE), expected, 180),
        "parquet in large parts": Known(Parquet(str(directory / "*.parquet"), **TABLE), expected, 180),
    }


KINDS = ("synthetic", "synthetic multi", "synthetic in memory", "criteo", "criteo in tiny blocks", "criteo gz",
         "criteo one gz", "csv", "parquet", "parquet in large parts")  # fmt: skip


@pytest.fixture(scope="session")
def known_sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Known]:
    known = make_known(tmp_path_factory.mktemp("data"))
    assert tuple(known) == KINDS
    return _Quiet(known)


class _Quiet(dict[str, Known]):
    """Hypothesis shows arguments; these are long."""

    def __repr__(self) -> str:
        return "known_sources"
