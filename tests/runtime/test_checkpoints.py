"""Checkpoints: a resumed run is the unbroken one, to the bit; broken files are named; full disks break none."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from heterps.data import Synthetic
from heterps.errors import InvalidInput
from heterps.models import Chain, Layer
from heterps.runtime import Checkpoints, Result, checkpoint, train
from heterps.runtime.checkpoint import CheckpointFailed, State, Store
from heterps.store import SparseTable
from tests import bucket
from tests.runtime.chains import IDS, random_batches, seeded, small
from tests.runtime.plain import rows_of
from tests.runtime.plans import make_plan
from tests.runtime.test_layers import CASES, tied

BATCHES = random_batches(24)


@dataclass(frozen=True)
class Where:
    """A directory of this machine, or the URL of storage whose files lie in one."""

    given: str | Path
    root: Path

    def file(self, step: int, name: str) -> Path:
        """A file of a checkpoint; in storage those but state.json lie one level lower."""
        (found,) = (self.root / f"step-{step:09d}").glob(name if name == "state.json" else f"**/{name}")
        return found


@pytest.fixture(params=["here", "bucket"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Where:
    return Where(tmp_path if request.param == "here" else bucket.url(tmp_path), tmp_path)


@seeded
def dropping() -> Chain:
    """With dropout, whose masks come from torch's generator."""
    *layers, logit, last = small().layers
    drop = Layer("drop", nn.Dropout(0.3), reads="fc2", writes="dropped")
    return Chain(*layers, drop, Layer("logit", logit.module, reads="dropped", writes="logit"), last)


def run(path: str | Path | None, steps: int, *, make: Any = small, cuts: tuple[int, ...] = (1, 3), data: Any = BATCHES,
        every: int = 4, **settings: Any) -> tuple[Chain, Result]:  # fmt: skip
    chain = make()
    options = {name: settings.pop(name) for name in ("delta", "keep") if name in settings}
    checkpoints = None if path is None else Checkpoints(path=path, every_steps=every, **options)
    torch.manual_seed(5)
    settings = {"micro_batches": 2, "optimizer": "adam", "lr": 0.01, **settings}
    return chain, train(chain, data, make_plan(chain, cuts), steps=steps, checkpoints=checkpoints, **settings)


def assert_same_bits(one: Chain, other: Chain, ids: int = IDS) -> None:
    ours, theirs = one.state_dict(), other.state_dict()
    for name, weight in ours.items():
        assert torch.equal(weight, theirs[name]), name
    for name in one.tables:
        assert torch.equal(rows_of(one, name, ids), rows_of(other, name, ids)), name


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize("first", [1, 4, 10, 23])
def test_a_resumed_run_is_the_unbroken_one(first: int, delta: bool, where: Where):
    unbroken, whole = run(None, 24)
    _, before = run(where.given, first, delta=delta)
    chain, after = run(where.given, 24, delta=delta)
    assert before.losses + after.losses == whole.losses
    assert (after.auc, after.samples, after.steps) == (whole.auc, whole.samples, 24)
    assert_same_bits(chain, unbroken)


@pytest.mark.parametrize(
    "name", ["one_table_at_both_ends", "bags", "embeddings_everywhere", "only_rows_learn", "no_rows"]
)
def test_chains_of_other_shapes(name: str, where: Where):
    cuts = (1, 2) if name in ("only_rows_learn", "no_rows") else (1, 3)
    unbroken, whole = run(None, 24, make=CASES[name], cuts=cuts)
    _, before = run(where.given, 10, make=CASES[name], cuts=cuts)
    chain, after = run(where.given, 24, make=CASES[name], cuts=cuts)
    assert before.losses + after.losses == whole.losses
    assert_same_bits(chain, unbroken)


def test_layers_that_share_a_weight(where: Where):
    unbroken, whole = run(None, 24, make=tied, cuts=(1,))
    _, before = run(where.given, 10, make=tied, cuts=(1,))
    chain, after = run(where.given, 24, make=tied, cuts=(1,))
    assert before.losses + after.losses == whole.losses
    assert_same_bits(chain, unbroken)


def test_another_dense_optimizer_is_refused(where: Where):
    """It could not use what is there: one with momentum would start without."""
    run(where.given, 4, optimizer="adam")
    with pytest.raises(InvalidInput, match="has the state of Adam, which Adagrad cannot take up; resume with Adam"):
        run(where.given, 8, optimizer="adagrad")
    run(where.given, 8, optimizer="adam")


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "adagrad", "sgd", "rmsprop"])
def test_state_of_dense_optimizers(optimizer: str, where: Where):
    unbroken, _ = run(None, 24, optimizer=optimizer, clip_norm=0.5)
    run(where.given, 10, optimizer=optimizer, clip_norm=0.5)
    chain, _ = run(where.given, 24, optimizer=optimizer, clip_norm=0.5)
    assert_same_bits(chain, unbroken)


def test_schedules_go_on(where: Where):
    schedule = {"schedule": lambda step: 1 / (1 + step)}
    unbroken, _ = run(None, 24, **schedule)
    run(where.given, 10, **schedule)
    chain, _ = run(where.given, 24, **schedule)
    assert_same_bits(chain, unbroken)


def test_random_state_goes_on(where: Where):
    unbroken, whole = run(None, 24, make=dropping, cuts=(1,))
    _, before = run(where.given, 10, make=dropping, cuts=(1,))
    torch.manual_seed(1234)
    chain, after = run(where.given, 24, make=dropping, cuts=(1,))
    assert before.losses + after.losses == whole.losses
    assert_same_bits(chain, unbroken)


@seeded
def dropping_twice() -> Chain:
    """With dropout in two stages, if it is cut at 3."""
    rows, fc1, fc2, *rest = dropping().layers
    drop = Layer("early", nn.Dropout(0.5), reads="fc1", writes="early")
    return Chain(rows, fc1, drop, Layer("fc2", fc2.module, reads="early", writes="fc2"), *rest)


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_stages_that_draw_at_the_same_time(micro_batches: int, where: Where):
    """Draw the same at every run, and after a resume."""
    settings = {"make": dropping_twice, "cuts": (1, 3), "micro_batches": micro_batches}
    runs = [run(None, 24, **settings) for _ in range(3)]
    for chain, result in runs[1:]:
        assert result.losses == runs[0][1].losses
        assert_same_bits(chain, runs[0][0])
    run(where.given, 10, **settings)
    chain, _ = run(where.given, 24, **settings)
    assert_same_bits(chain, runs[0][0])


def test_the_data_goes_on_where_it_was(where: Where):
    """In the middle of the second epoch of a shuffled source."""
    source = Synthetic(rows=300, ids=40, slots=3, dense=2, id_space="dense")
    settings: dict[str, Any] = {"data": source, "batch_size": 32, "seed": 3}
    unbroken, whole = run(None, 24, **settings)
    _, before = run(where.given, 14, **settings)
    chain, after = run(where.given, 24, **settings)
    assert before.losses + after.losses == whole.losses
    assert_same_bits(chain, unbroken)


def test_evaluations_and_early_stop_go_on(where: Where):
    settings: dict[str, Any] = {"evaluation": BATCHES[:3], "eval_every": 4}
    _, whole = run(None, 24, **settings)
    run(where.given, 10, **settings)
    _, after = run(where.given, 24, **settings)
    assert [found for found in after.evaluations if found["step"] != 10] == whole.evaluations


def test_async_runs_resume(where: Where):
    """They are drained before a checkpoint."""
    run(where.given, 10, mode="async", staleness=3)
    _, after = run(where.given, 24, mode="async", staleness=3)
    assert (after.steps, len(after.losses)) == (24, 14)


def test_a_run_that_is_done_stays_as_it_is(where: Where):
    unbroken, _ = run(where.given, 8)
    before = {path: path.stat().st_mtime_ns for path in where.root.rglob("*")}
    chain, again = run(where.given, 8)
    assert (again.steps, again.losses, again.stopped) == (8, [], "done")
    assert_same_bits(chain, unbroken)
    assert {path: path.stat().st_mtime_ns for path in where.root.rglob("*")} == before, "nothing is written again"


def test_a_new_run_refuses_checkpoints_of_another(where: Where):
    run(where.given, 8)
    with pytest.raises(InvalidInput, match="holds checkpoints of another run; resume it, or choose another path"):
        run(where.given, 8, resume=False)


def test_by_minutes(where: Where):
    chain = small()
    train(chain, BATCHES, checkpoints=Checkpoints(path=where.given, every_minutes=1e-9, keep=100))
    assert len(list(where.root.glob("step-*"))) == len(BATCHES)


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_only_what_is_needed_is_kept(keep: int, where: Where):
    """Deltas need all from the last whole one on: after each of many saves, the newest `keep` can be loaded."""
    store = Store(Checkpoints(path=where.given, keep=keep))
    table = SparseTable(dim=2, optimizer="sgd", lr=1.0, name="t")
    seen = []
    for step in range(1, 26):
        table.push(torch.tensor([step]), torch.ones(1, 2))
        store.save(State(step=step, samples=step, position=None), {"t": table})
        seen.append(rows(table))
        for back in range(min(keep, step)):
            other = SparseTable(dim=2, optimizer="sgd", lr=1.0, name="t")
            store_again = Store(Checkpoints(path=where.given))
            path = store_again.path / f"step-{step - back:09d}"
            assert store_again.load(path, {"t": other}).step == step - back
            assert torch.equal(rows(other), seen[-1 - back])
        whole = [path for path in where.root.glob("step-*") if json.loads((path / "state.json").read_text())]
        assert len(whole) <= keep + Store.FULL_EVERY
    builds_on = {json.loads((path / "state.json").read_text())["builds_on"] for path in where.root.glob("step-*")}
    assert None in builds_on
    assert len(builds_on) > 1, "some are deltas"


def rows(table: SparseTable) -> torch.Tensor:
    return table.pull(torch.arange(30), create=False).clone()


def test_without_deltas_every_checkpoint_stands_alone(where: Where):
    run(where.given, 24, delta=False, keep=1)
    assert [name for name in names(where.root) if name.startswith("step-")] == ["step-000000024"]
    chain, _ = run(None, 24)
    resumed, _ = run(where.given, 24)
    assert_same_bits(resumed, chain)


# What a crash may leave behind.


def test_torn_drafts_are_ignored_and_removed(tmp_path: Path):
    unbroken, _ = run(None, 24)
    run(tmp_path, 10)
    for name in (".draft-step-000000012-1", ".draft-old-step-000000004-7"):
        shutil.copytree(tmp_path / "step-000000010", tmp_path / name)
    (tmp_path / ".draft-step-000000012-1" / "dense.safetensors").unlink()
    chain, _ = run(tmp_path, 24)
    assert_same_bits(chain, unbroken)
    assert not list(tmp_path.glob(".draft*"))


@pytest.mark.parametrize("latest", [None, "step-000000999", ""])
def test_a_missing_or_wrong_latest_is_made_up_for(latest: str | None, where: Where):
    """By the newest whole checkpoint: a run never starts anew beside checkpoints of its own."""
    unbroken, _ = run(None, 24)
    run(where.given, 10)
    (where.root / "latest").unlink()
    if latest is not None:
        (where.root / "latest").write_text(latest)
    chain, after = run(where.given, 24)
    assert len(after.losses) == 14
    assert_same_bits(chain, unbroken)


def test_a_latest_that_cannot_be_read_is_an_error_that_names_it(tmp_path: Path):
    run(tmp_path, 4)
    (tmp_path / "latest").unlink()
    (tmp_path / "latest").mkdir()
    with pytest.raises(CheckpointFailed, match="latest cannot be read: Is a directory"):
        run(tmp_path, 8)


def test_old_ones_that_cannot_be_removed_are_an_error_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The new one is there all the same."""

    def discard(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Store, "_discard", discard)
    with pytest.raises(CheckpointFailed, match="step-000000008 is saved; older ones cannot be removed: Read-only"):
        run(tmp_path, 24, delta=False, keep=1)
    assert (tmp_path / "latest").read_text() == "step-000000008"


def test_a_checkpoint_that_latest_does_not_name_yet(where: Where):
    """The run was killed after the rename and before `latest` changed: it goes on from the one before."""
    unbroken, _ = run(None, 24)
    run(where.given, 10)
    (where.root / "latest").write_text("step-000000008")
    chain, after = run(where.given, 24)
    assert len(after.losses) == 16
    assert_same_bits(chain, unbroken)


FILES = ["state.json", "dense.safetensors", "training.pt", "tables/rows.hps"]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "missing"])
def test_a_broken_file_is_named(file: str, damage: str, where: Where):
    if (file, damage) == ("state.json", "missing"):
        pytest.skip("a checkpoint without it is none")
    run(where.given, 8)
    path = where.file(8, file)
    held = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"cut": held[: len(held) // 2], "garbage": b"\x80\x02garbage" * 20, "empty": b""}[damage])
    with pytest.raises(CheckpointFailed, match=file):
        run(where.given, 24)


@pytest.mark.parametrize("file", FILES[1:])
def test_a_single_wrong_byte_is_noticed(file: str, where: Where):
    run(where.given, 8)
    path = where.file(8, file)
    held = bytearray(path.read_bytes())
    held[-40] ^= 1
    path.write_bytes(held)
    with pytest.raises(CheckpointFailed, match=file):
        run(where.given, 24)


def test_a_broken_base_of_a_delta_is_named(where: Where):
    run(where.given, 8)
    path = where.file(4, "tables/rows.hps")
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CheckpointFailed, match=r"step-000000004/.*tables/rows\.hps"):
        run(where.given, 24)


def test_another_models_checkpoint_is_refused(where: Where):
    run(where.given, 8)
    with pytest.raises(CheckpointFailed, match=r"has the tables \['rows'\], the model \[\]"):
        run(where.given, 24, make=CASES["no_rows"], cuts=())

    def other() -> Chain:
        *layers, last = small().layers
        return Chain(*layers, Layer("more", nn.Linear(1, 1), reads="logit", writes="more"),
                     Layer("loss", last.module, reads=["more", "label"], writes="loss"))  # fmt: skip

    with pytest.raises(CheckpointFailed, match="is of another model"):
        run(where.given, 24, make=other)


# Disks.


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size`: writers get an error from the system, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def assert_intact(path: Path, step: int, unbroken: Chain) -> None:
    """The checkpoint of `step` is the newest one, nothing half-done is left, and the run can go on from it."""
    assert (path / "latest").read_text() == f"step-{step:09d}"
    assert not list(path.glob(".draft*"))
    chain, after = run(path, 24)
    assert len(after.losses) == 24 - step
    assert_same_bits(chain, unbroken)


@pytest.mark.parametrize("file", FILES)
def test_a_disk_that_takes_no_more(file: str, tmp_path: Path):
    """Real errors of real writers: each file in turn is the one that is too large."""
    unbroken, _ = run(None, 24)
    run(tmp_path, 8)
    size = (tmp_path / "step-000000008" / file).stat().st_size
    with largest_file(size // 2), pytest.raises(CheckpointFailed, match=r"step-000000012.*earlier ones are intact"):
        run(tmp_path, 24)
    assert_intact(tmp_path, 8, unbroken)


@pytest.mark.parametrize("call", range(1, 12, 2))
def test_a_disk_that_fails_while_syncing(call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    unbroken, _ = run(None, 24)
    run(tmp_path, 8)
    real, calls = os.fsync, []

    def fsync(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor)

    monkeypatch.setattr(checkpoint.os, "fsync", fsync)
    with pytest.raises(CheckpointFailed, match="No space left on device"):
        run(tmp_path, 24)
    monkeypatch.undo()
    chain, after = run(tmp_path, 24)
    assert len(after.losses) <= 16
    assert_same_bits(chain, unbroken)


def test_a_full_disk(tmp_path: Path):
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small disk needs root")
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this root may not mount")
    try:
        unbroken, _ = run(None, 24)
        run(disk, 8, delta=False)
        for room in (0, 4096, 8192, 16384):
            (disk / "ballast").write_bytes(b"\0" * (shutil.disk_usage(disk).free - room))
            with pytest.raises(CheckpointFailed, match=r"No space left on device.*earlier ones are intact"):
                run(disk, 24, delta=False)
            (disk / "ballast").unlink()
            assert (disk / "latest").read_text() == "step-000000008"
        assert_intact(disk, 8, unbroken)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_path_that_cannot_be_written(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointFailed, match="Not a directory"):
        run(tmp_path / "file" / "checkpoints", 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"keep": 0}, "keep is a whole number, at least 1"), ({"every_steps": 0}, "every_steps is a whole number"),
     ({"every_steps": 2.5}, "at least 1, not 2.5"), ({"every_minutes": -1.0}, "every_minutes is a number above 0")],
)  # fmt: skip
def test_wrong_options_are_explained(options: dict[str, Any], message: str, tmp_path: Path):
    with pytest.raises(InvalidInput, match=message):
        Checkpoints(path=tmp_path, **options)
