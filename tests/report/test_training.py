"""A report of a run that really trained."""

from __future__ import annotations

from pathlib import Path

import heterps
from heterps.data import Synthetic
from heterps.models import zoo
from heterps.report.data import read_run
from heterps.store import SparseTable
from heterps.telemetry import JsonLines, Recorder


def test_it_has_stages_curves_and_tables(tmp_path: Path) -> None:
    chain = zoo.build("ctrdnn", dim=4, hidden=[8], slots=4, dense=3)
    with Recorder([JsonLines(tmp_path / "telemetry.jsonl")]) as recorder:
        result = heterps.train(chain, Synthetic(rows=4000, ids=500, slots=4, dense=3), batch_size=64, steps=45,
                               micro_batches=2, recorder=recorder)  # fmt: skip
    data = read_run(tmp_path)
    assert data["run"]["state"] == "over"
    assert data["run"]["step"] == 45
    assert data["curves"]["loss"][-1] == [45, result.losses[-1]]
    assert data["stages"][0]["measured_s"] > 0
    assert data["timeline"]["last_step"] - data["timeline"]["first_step"] == 9
    (table,) = data["store"]
    stored = chain.tables[table["name"]]
    assert isinstance(stored, SparseTable)
    stats = stored.stats()
    assert [table[key] for key in ("rows", "bytes", "hits", "creations")] == [
        stats.rows, stats.bytes, stats.hits, stats.creations
    ]  # fmt: skip
