"""Run directories: `runs/<name>/` with everything a run leaves, and `runs/latest`, the newest one."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heterps.errors import HeterPSError, InvalidInput

if TYPE_CHECKING:
    from heterps.job import Job
    from heterps.storage import Place, Url

LATEST = "latest"
JOB_FILE = "job.yaml"
Runs = Annotated[str, typer.Option(metavar="DIR", help="Where runs are kept.")]
RunArgument = Annotated[
    str,
    typer.Argument(metavar="RUN", help="A run's name, its directory, or that of a checkpoint (or its URL); or latest."),
]


@dataclass(frozen=True, slots=True)
class Run:
    """The directory of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The directory's."""
        return self.path.name

    @property
    def job_file(self) -> Path:
        """The job as it was run."""
        return self.path / JOB_FILE

    @property
    def result_file(self) -> Path:
        """What the run gave."""
        return self.path / "result.json"

    def checkpoints(self, job: Job) -> Place:
        """Where its checkpoints are: in it, unless the job says otherwise."""
        from heterps.storage import place

        return place(job.checkpoint.path) if job.checkpoint.path is not None else self.path / "checkpoints"


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint, and the job it belongs to, if that is known."""

    checkpoint: Place
    job: Job | None


def run_of_name(root: Path, name: str, *, fresh: bool) -> Run:
    """The run of a name; with `fresh`, one that is not there yet: NAME, or else NAME-2, NAME-3 and so on."""
    if not name or "/" in name or name.startswith(".") or name == LATEST:
        raise InvalidInput(f"a run's name is a plain word, not {name!r}")
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return Run(next(root / each for each in names if not fresh or not (root / each).exists()))


@contextmanager
def opened(run: Run) -> Iterator[None]:
    """The run's directory, made and held: two processes cannot train one run. It becomes the latest."""
    with writing(run.path):
        run.path.mkdir(parents=True, exist_ok=True)
        lock = (run.path / ".lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system lets go of it however the process ends
        except OSError:
            raise InvalidInput(f"run {run.name!r} is being trained by another process; use another --name") from None
        with writing(run.path.parent):
            _link_latest(run.path)
        yield


def find(text: str, root: Path) -> Found:
    """The newest checkpoint of a run (by name or directory), of a directory of checkpoints, or the one named."""
    from heterps.runtime.restore import newest_checkpoint

    where, job = _find_in_storage(text) if "://" in text else _find_here(text, root)
    checkpoint = newest_checkpoint(where)
    if checkpoint is None:
        raise InvalidInput(f"{where}: no checkpoint there yet; train first, or name another directory")
    return Found(checkpoint, job)


def _find_here(text: str, root: Path) -> tuple[Place, Job | None]:
    """Where checkpoints of a run or a directory are, and the job above them."""
    from heterps.job import Job

    path = next((path for path in (Path(text), root / text) if path.is_dir()), None)
    if path is None:
        raise InvalidInput(f"no run or checkpoint {text!r}: neither that directory is there nor {root / text}")
    path = path.resolve()
    run = next((Run(each) for each in (path, *path.parents[:2]) if Run(each).job_file.is_file()), None)
    job = None if run is None else Job.load(run.job_file)
    where = run.checkpoints(job) if run is not None and job is not None and run.path == path else path
    return where, job


def _find_in_storage(text: str) -> tuple[Place, Job | None]:
    """The same for a URL, where the job lies beside the checkpoints."""
    from heterps.storage import Url, place

    where = place(text)
    if not isinstance(where, Url):
        return _find_here(str(where), where)
    return where, kept_job(where) or kept_job(where.parent)


def keep_job(job: Job, checkpoints: Url) -> None:
    """Puts the job beside checkpoints in storage: they can then be used without the run's directory."""
    from heterps.storage import to_write

    with to_write(checkpoints / JOB_FILE) as local:
        job.save(local)


def kept_job(checkpoints: Url) -> Job | None:
    """What `keep_job` put there."""
    from heterps.job import Job
    from heterps.storage import to_read

    if not (checkpoints / JOB_FILE).is_file():
        return None
    with to_read(checkpoints / JOB_FILE) as local:
        return Job.load(local)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns what the system says of a path that cannot be written into an error for users."""
    try:
        yield
    except OSError as error:
        raise HeterPSError(f"{path}: cannot be written ({error.strerror or error})") from error


def _link_latest(path: Path) -> None:
    link, new = path.parent / LATEST, path.parent / f".{LATEST}"
    with suppress(FileNotFoundError):
        new.unlink()
    new.symlink_to(path.name, target_is_directory=True)
    if link.is_symlink() or not link.exists():
        new.replace(link)
    else:
        new.unlink()  # something of that name which is not ours
