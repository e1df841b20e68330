"""A chain as a checkpoint left it, for evaluating and exporting."""

from __future__ import annotations

from pathlib import Path

from heterps.models import Chain
from heterps.runtime.checkpoint import CheckpointFailed, Checkpoints, State, Store
from heterps.runtime.placement import cores
from heterps.runtime.tables import bind_tables


def newest_checkpoint(directory: Path) -> Path | None:
    """The newest whole checkpoint of a directory; the directory itself if it is one."""
    if (directory / "state.json").is_file():
        return directory
    return Store(Checkpoints(path=directory)).newest()


def restore(chain: Chain, checkpoint: Path, *, seed: int = 0) -> State:
    """Gives a new chain the weights and tables of a checkpoint, in this process.

    Args:
        chain: as it was made for the run; its weights are replaced and its tables made.
        checkpoint: the directory of one checkpoint.
        seed: the run's, for tables without one of their own.
    """
    tables = bind_tables(chain, seed=seed, threads=cores())
    state = Store(Checkpoints(path=checkpoint.parent)).load(checkpoint.absolute(), tables)
    try:
        chain.load_state_dict(dict(state.dense))
    except RuntimeError as error:
        raise CheckpointFailed(f"{checkpoint}: is of another model: {' '.join(str(error).split())}") from None
    return state
