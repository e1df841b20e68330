"""What a coordinator leaves for the one after it, beside checkpoints on disk and in storage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from heterps.runtime.checkpoint import CheckpointFailed
from heterps.runtime.cluster.history import History
from heterps.runtime.cluster.parts import join_parts, remove_parts, write_part
from heterps.storage import StorageFailed
from tests import bucket


@pytest.fixture(params=["here", "bucket", "folder"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "here" else bucket.url(tmp_path, request.param)


def test_losses_beyond_the_checkpoint_did_not_survive(where: str):
    history = History(where, "job")
    assert history.losses(10) == []
    history.add([0.5, 0.25, 0.125])
    history.add([1.0])
    assert History(where, "job").losses(2) == [0.5, 0.25]
    history.add([2.0])
    assert history.losses(10) == [0.5, 0.25, 2.0]


def test_runs_are_apart_and_leave_nothing(where: str, tmp_path: Path):
    one, two = History(where, "one"), History(where, "two")
    assert one.facts() is None
    one.note({"first_step": 3})
    one.add([1.0])
    assert (History(where, "one").facts(), two.facts(), two.losses(5)) == ({"first_step": 3}, None, [])
    one.remove()
    two.remove()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_storage_that_is_away_is_not_a_run_that_has_not_begun(tmp_path: Path):
    history = History(bucket.url(tmp_path), "job")
    history.note({"first_step": 3})
    history.add([1.0])
    with bucket.gone("get list"):
        assert history.facts() is not None
    with bucket.gone("get list", at=1):
        with pytest.raises(StorageFailed):
            history.facts()
        with pytest.raises(StorageFailed):
            history.losses(1)
        with pytest.raises(StorageFailed):
            history.add([2.0])
    assert history.losses(5) == [1.0]


def test_parts_of_stages_become_one(where: str, tmp_path: Path):
    folder = f"{where}/.parts-job-token"
    weights = {"a.weight": torch.arange(3.0)}, {"b.weight": torch.ones(2, 2)}
    for stage, dense in enumerate(weights):
        write_part(folder, stage, dense, {name: {"step": stage} for name in dense})
    joined = join_parts(folder, 2)
    assert joined.dense.keys() == {"a.weight", "b.weight"}
    assert torch.equal(joined.dense["b.weight"], weights[1]["b.weight"])
    assert joined.optimizer["b.weight"] == {"step": 1}
    with pytest.raises(CheckpointFailed, match=r"stage-2\.pt"):
        join_parts(folder, 3)
    write_part(f"{where}/.parts-other-token", 0, weights[0], {})
    remove_parts(where, "job")
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path.parent.name for path in left] == [".parts-other-token"]


def test_a_part_that_cannot_be_written_is_a_failed_checkpoint(tmp_path: Path):
    with bucket.gone("put", at=1), pytest.raises(CheckpointFailed, match=r"bucket://.*earlier ones are intact"):
        write_part(bucket.url(tmp_path / "parts"), 0, {}, {})
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointFailed, match="earlier ones are intact"):
        write_part(tmp_path / "file" / "parts", 0, {}, {})
