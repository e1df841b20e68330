"""What a coordinator leaves for the one after it, beside checkpoints on disk and in storage."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from heterps.runtime.checkpoint import CheckpointFailed
from heterps.runtime.cluster.history import History
from heterps.runtime.cluster.lease import Lease
from heterps.runtime.cluster.parts import join_parts, remove_parts, write_part
from heterps.storage import StorageFailed, write_json
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


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From its call on, nothing reaches the disk any more."""

    def fsync(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr(os, "fsync", fsync)


def test_a_full_disk_is_a_failed_checkpoint_and_leaves_nothing(tmp_path: Path, full_disk: Callable[[], None]):
    history = History(tmp_path, "job")
    lease = Lease(history)
    lease.note({"first_step": 3})
    history.add([1.0])
    before = sorted(path.name for path in tmp_path.iterdir())
    full_disk()
    with pytest.raises(CheckpointFailed, match=r"\.run-job\.json cannot be written: No space left on device$"):
        lease.note({"first_step": 4})
    with pytest.raises(CheckpointFailed, match=r"\.losses-job\.f64 cannot be written: No space left on device$"):
        history.add([2.0])
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    lease.check()
    facts = history.facts()
    assert facts is not None
    assert facts["first_step"] == 3
    assert history.losses(1) == [1.0]


def test_json_that_cannot_be_written_leaves_nothing(tmp_path: Path, full_disk: Callable[[], None]):
    full_disk()
    with pytest.raises(OSError, match="No space left"):
        write_json(tmp_path / "file.json", {"a": 1})
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_read_are_a_failed_checkpoint(tmp_path: Path):
    history = History(tmp_path, "job")
    lease = Lease(history)
    (tmp_path / ".run-job.json").unlink()
    for name in (".run-job.json", ".losses-job.f64"):
        (tmp_path / name).mkdir()
    for call in (history.facts, lease.check, lambda: lease.note({}), lambda: history.losses(1)):
        with pytest.raises(CheckpointFailed, match="cannot be read: Is a directory"):
            call()
    history.remove()  # as far as that can be done


def test_facts_that_are_still_being_written_are_a_failed_checkpoint(tmp_path: Path):
    """Where files show before they are whole: whose lease it is cannot be told, so it is not lost."""
    lease = Lease(History(bucket.url(tmp_path, "folder"), "job"))
    (tmp_path / ".run-job.json").write_text('{"coord')
    with pytest.raises(CheckpointFailed, match=r"\.run-job\.json cannot be read"):
        lease.check()


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
