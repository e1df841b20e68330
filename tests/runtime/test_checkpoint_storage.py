"""Checkpoints in storage that cannot rename: whatever is killed or fails, and wherever, the last good one stays."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from heterps.errors import InvalidInput
from heterps.runtime import Checkpoints
from heterps.runtime.checkpoint import CheckpointFailed, State, Store
from heterps.runtime.restore import newest_checkpoint, restore
from heterps.storage import StorageFailed, Url, place, to_write
from heterps.store import SparseTable
from tests import bucket
from tests.runtime.chains import small
from tests.runtime.job import job
from tests.runtime.test_checkpoints import assert_same_bits, run
from tests.runtime.test_interruption import STEPS, assert_same, ended, processes

KINDS = ["bucket", "folder"]


def job_in_storage(checkpoints: str, result: Path, steps: int, kill_at: int = 0) -> None:
    """A run that is killed when it has changed something in storage so often."""
    Store.FULL_EVERY = 3  # so that old ones are removed
    if kill_at:
        bucket.die_at(kill_at)
    job(checkpoints, result, steps)  # type: ignore[arg-type]


def start(*args: Any, **options: Any) -> Any:
    process = processes.Process(target=job_in_storage, args=args, kwargs=options, daemon=True)
    process.start()
    return process


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("unbroken")
    assert ended(start(str(path / "checkpoints"), path / "result", STEPS)) == 0
    return torch.load(path / "result")


def files(root: Path) -> list[str]:
    found = (path for path in root.rglob("*") if path.is_file() and bucket.HIDDEN not in path.name)
    return sorted(str(path.relative_to(root)) for path in found)


def assert_tidy(root: Path, keep: int = 1) -> None:
    """Nothing but whole checkpoints that are needed, each with its own files alone."""
    folders = sorted(path for path in root.glob("step-*") if files(path))
    headers = {path.name: json.loads((path / "state.json").read_text()) for path in folders}
    for path in folders:
        inside = {name.split("/")[0] for name in files(path)}
        assert inside == {"state.json", headers[path.name]["parts"]}
    needed, wanted = set(), sorted(headers)[-keep:]
    while wanted:
        needed.add(name := wanted.pop())
        if headers[name]["builds_on"] is not None:
            wanted.append(headers[name]["builds_on"])
    assert needed == headers.keys()


def _kills() -> list[Any]:
    """Each kind of storage in every other two moments, in turn: the middle and the end of an upload come in pairs."""
    return [
        pytest.param(at, kind, marks=[] if (at // 2 + which) % 2 else [pytest.mark.soak])
        for at in (*range(1, 13), *range(38, 56))
        for which, kind in enumerate(KINDS)
    ]


@pytest.mark.parametrize(("kill_at", "kind"), _kills())
def test_a_run_killed_while_it_saves(kill_at: int, kind: str, tmp_path: Path, unbroken: dict[str, Any]):
    """In the middle of an upload, at its end, and while it removes old ones."""
    root = tmp_path / "checkpoints"
    url = bucket.url(root, kind)
    assert ended(start(url, tmp_path / "result", STEPS, kill_at=kill_at)) in (-signal.SIGKILL, 0), "0: it has fewer"
    assert ended(start(url, tmp_path / "result", STEPS)) == 0
    assert_same(tmp_path / "result", unbroken)
    assert_tidy(root)


def test_the_kills_hit_every_kind_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """So that the test above does not go blind."""
    monkeypatch.setattr(Store, "FULL_EVERY", Store.FULL_EVERY)
    seen: list[tuple[str, str]] = []
    bucket.before.append(lambda verb, path: seen.append((verb, Path(path).name)))
    try:
        job_in_storage(bucket.url(tmp_path / "checkpoints"), tmp_path / "result", STEPS)
    finally:
        bucket.before.pop()
    changes = [entry for entry in seen if entry[0] in ("put", "remove")]
    first = ["rows.hps", "dense.safetensors", "training.pt", "state.json", "latest"]
    assert changes[:10] == [("put", name) for name in first for _ in range(2)], "the manifest comes after all parts"
    assert ("remove", "state.json") in changes[38:54]
    assert ("remove", "rows.hps") in changes[38:54]
    assert changes[-1][0] == "put", "and a save follows"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", range(1, 12))
def test_storage_that_goes_away_while_saving(at: int, kind: str, tmp_path: Path):
    """An upload may also fail when all of it has arrived: an even number."""
    unbroken, _ = run(None, 24)
    url = bucket.url(tmp_path, kind)
    run(url, 8)
    with (
        bucket.gone("put", at=at),
        pytest.raises(CheckpointFailed, match=f"{kind}://.*step-0000000.*unreachable.*intact"),
    ):
        run(url, 24)
    if kind == "bucket":
        assert (tmp_path / "latest").read_text() in ("step-000000008", "step-000000012", "step-000000016")
    chain, after = run(url, 24)
    assert len(after.losses) <= 16
    assert_same_bits(chain, unbroken)
    assert_tidy(tmp_path, keep=2)


@pytest.mark.parametrize("kind", KINDS)
def test_storage_that_cannot_be_read_is_not_empty(kind: str, tmp_path: Path):
    """Or a run would begin anew on top of its own checkpoints."""
    url = bucket.url(tmp_path, kind)
    run(url, 8)
    before = files(tmp_path)
    for verbs in ("list", "get"):
        for at in (1, 2, 3):
            with (
                bucket.gone(verbs, at=at),
                pytest.raises((StorageFailed, CheckpointFailed), match=f"{kind}://.*unreach"),
            ):
                run(url, 24)
    assert files(tmp_path) == before


def test_storage_that_goes_away_while_old_ones_are_removed(tmp_path: Path):
    """The save is done; the next one removes them."""
    url = bucket.url(tmp_path)
    with bucket.gone("remove", at=1):
        run(url, 24, delta=False, keep=1)
    assert len(list(tmp_path.glob("step-*"))) > 1
    run(url, 25, delta=False, keep=1, data=[*_batches(), *_batches()])
    assert_tidy(tmp_path)


def _batches() -> list[Any]:
    from tests.runtime.test_checkpoints import BATCHES

    return BATCHES


@pytest.mark.parametrize("kind", KINDS)
def test_uploads_of_killed_runs_are_ignored_and_removed(kind: str, tmp_path: Path):
    unbroken, _ = run(None, 24)
    url = bucket.url(tmp_path, kind)
    run(url, 10)
    for name in ("step-000000012", "step-000000013"):
        shutil.copytree(tmp_path / "step-000000010", tmp_path / name)
        (tmp_path / name / "state.json").unlink()
    chain, after = run(url, 24)
    assert len(after.losses) == 14
    assert_same_bits(chain, unbroken)
    assert_tidy(tmp_path, keep=2)


@pytest.mark.parametrize("latest", [None, "step-0000"])
def test_a_manifest_that_is_cut_short_is_none(latest: str | None, tmp_path: Path):
    """Where files show while they are written; whatever `latest` does not name was never committed."""
    unbroken, _ = run(None, 24)
    url = bucket.url(tmp_path, "folder")
    run(url, 10)
    shutil.copytree(tmp_path / "step-000000010", tmp_path / "step-000000011")
    torn = tmp_path / "step-000000011" / "state.json"
    torn.write_text(torn.read_text()[:100])
    (tmp_path / "latest").unlink()
    if latest is not None:
        (tmp_path / "latest").write_text(latest)
    chain, after = run(url, 24, every=5)
    assert len(after.losses) == 14
    assert_same_bits(chain, unbroken)
    assert_tidy(tmp_path, keep=2)


def test_a_first_manifest_that_is_cut_short_is_none(tmp_path: Path):
    run(bucket.url(tmp_path), 4)
    (tmp_path / "latest").unlink()
    torn = tmp_path / "step-000000004" / "state.json"
    torn.write_text(torn.read_text()[:100])
    _, after = run(bucket.url(tmp_path), 24)
    assert len(after.losses) == 24


def store_of(where: str | Path) -> tuple[Store, SparseTable]:
    return Store(Checkpoints(path=where, keep=1)), SparseTable(dim=2, optimizer="sgd", lr=1.0, name="t")


def save(store: Store, table: SparseTable, step: int) -> None:
    table.push(torch.tensor([step]), torch.full((1, 2), float(step)))
    store.save(State(step=step, samples=step, position=None), {"t": table})


@pytest.mark.parametrize("kind", ["here", *KINDS])
def test_checkpoints_of_a_lost_branch_do_not_displace_new_ones(kind: str, tmp_path: Path):
    """A run killed before `latest` named its last one goes on from the one before, and may save at other steps."""
    where = tmp_path if kind == "here" else bucket.url(tmp_path, kind)
    store, table = store_of(where)
    for step in (4, 8, 12):
        save(store, table, step)
    (tmp_path / "latest").write_text("step-000000008")
    again, table = store_of(where)
    newest = again.newest()
    assert newest is not None
    assert again.load(newest, {"t": table}).step == 8
    for step in (10, 11):
        save(again, table, step)
    other = SparseTable(dim=2, optimizer="sgd", lr=1.0, name="t")
    last, _ = store_of(where)
    newest = last.newest()
    assert newest is not None
    assert last.load(newest, {"t": other}).step == 11
    ids = torch.arange(20)
    assert torch.equal(other.pull(ids, create=False), table.pull(ids, create=False))
    assert not (tmp_path / "step-000000012").exists()


@pytest.mark.parametrize("step", [8, 12])
@pytest.mark.parametrize("file", ["t.hps", "dense.safetensors", "training.pt"])
def test_a_process_taken_for_dead_wakes_up_in_the_middle_of_a_save(file: str, step: int, tmp_path: Path):
    """Another one has saved meanwhile, and removed what it took for leftovers: that one's checkpoint stays."""
    url = bucket.url(tmp_path)
    (late, its), (alive, own) = store_of(url), store_of(url)
    save(late, its, 4)
    meanwhile: list[str] = []

    def hook(verb: str, path: str) -> None:
        if verb == "put" and path.endswith(file) and not meanwhile:
            meanwhile.append(path)
            save(alive, own, step)

    bucket.before.append(hook)
    try:
        with pytest.raises(CheckpointFailed, match="removed meanwhile; does another run save there"):
            save(late, its, 8)
    finally:
        bucket.before.remove(hook)
    again, table = store_of(url)
    newest = again.newest()
    assert newest is not None
    assert again.load(newest, {"t": table}).step == step
    ids = torch.arange(20)
    assert torch.equal(table.pull(ids, create=False), own.pull(ids, create=False))


def test_the_memory_of_this_process(tmp_path: Path):
    unbroken, _ = run(None, 24)
    url = f"memory://{tmp_path.name}/checkpoints"
    run(url, 10)
    chain, after = run(url, 24)
    assert len(after.losses) == 14
    assert_same_bits(chain, unbroken)
    place(url).remove()  # type: ignore[union-attr]


def test_file_urls_are_paths(tmp_path: Path):
    run(f"file://{tmp_path}/checkpoints", 4)
    assert files(tmp_path / "checkpoints") == [
        "latest", "step-000000004/dense.safetensors", "step-000000004/state.json", "step-000000004/tables/rows.hps",
        "step-000000004/training.pt",
    ]  # fmt: skip


def test_checkpoints_move_between_disks_and_storage(tmp_path: Path):
    """Copied as they are, either way."""
    unbroken, _ = run(None, 24)
    run(tmp_path / "here", 8)
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    run(bucket.url(tmp_path / "there"), 16)
    shutil.copytree(tmp_path / "there", tmp_path / "back")
    chain, after = run(tmp_path / "back", 24)
    assert len(after.losses) == 8
    assert_same_bits(chain, unbroken)


def test_a_chain_is_restored_from_a_url(tmp_path: Path):
    trained, _ = run(bucket.url(tmp_path), 8)
    newest = newest_checkpoint(bucket.url(tmp_path))
    assert newest == Url(bucket.url(tmp_path / "step-000000008"))
    assert newest_checkpoint(str(newest)) == newest
    chain = small()
    assert restore(chain, str(newest)).step == 8
    assert_same_bits(chain, trained)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://", "s3://: the URL of a directory is protocol://bucket/path"),
        ("bucket:///runs/*", "without any of"),
        ("nowhere://bucket/run", "nowhere://bucket/run: Protocol not known: nowhere"),
        ("sftp://host/run", r"sftp://host/run: .*paramiko.*: pip install paramiko"),
    ],
)
def test_wrong_urls_are_explained(url: str, message: str):
    if url.startswith("sftp"):
        try:
            import paramiko  # noqa: F401
        except ImportError:
            pass
        else:
            pytest.skip("paramiko is here")
    with pytest.raises(InvalidInput, match=message):
        Store(Checkpoints(path=url))


def killed_halfway(url: str, here: str) -> None:
    tempfile.tempdir = here
    with to_write(place(url)) as file:
        file.write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_what_killed_processes_leave_here_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Copies of tables for an upload may be large; those of living processes stay, and so does what is not ours."""
    here, url = tmp_path / "here", bucket.url(tmp_path / "there")
    others = [here / "heterps-mine" / "file", tmp_path / "elsewhere" / "file"]
    for file in others:
        file.parent.mkdir(parents=True)
        file.write_text("")
    (here / "heterps-copy-linked").symlink_to(tmp_path / "elsewhere")
    (here / "heterps-copy-new").mkdir()
    kept = {path.name for path in here.iterdir()}
    process = processes.Process(target=killed_halfway, args=(f"{url}/a", str(here)))
    process.start()
    assert ended(process) == -signal.SIGKILL
    (left,) = (path for path in here.iterdir() if path.name not in kept)
    assert (left / "a").read_text() == "half"
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    with to_write(place(f"{url}/b")) as alive:
        assert not left.exists()
        alive.write_text("b")
        place(f"{url}/c").write_text("c")
        assert alive.read_text() == "b"
    assert {path.name for path in here.iterdir()} == kept
    assert all(file.exists() for file in others)
    assert files(tmp_path / "there") == ["b", "c"]
