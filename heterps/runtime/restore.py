"""A chain as a checkpoint left it, for evaluating and exporting."""

from __future__ import annotations

from heterps.models import Chain
from heterps.runtime.checkpoint import CheckpointFailed, Checkpoints, State, Store
from heterps.runtime.placement import cores
from heterps.runtime.tables import bind_tables
from heterps.storage import Place, place


def newest_checkpoint(directory: Place | str) -> Place | None:
    """The newest whole checkpoint of a directory, here or behind a URL; the directory itself if it is one."""
    found = place(directory)
    if (found / "state.json").is_file():
        return found
    return Store(Checkpoints(path=str(found))).newest()


def restore(chain: Chain, checkpoint: Place | str, *, seed: int = 0) -> State:
    """Gives a new chain the weights and tables of a checkpoint, in this process.

    Args:
        chain: as it was made for the run; its weights are replaced and its tables made.
        checkpoint: the directory of one checkpoint, or its URL.
        seed: the run's, for tables without one of their own.
    """
    tables = bind_tables(chain, seed=seed, threads=cores())
    found = place(checkpoint)
    state = Store(Checkpoints(path=str(found.parent))).load(found, tables)
    try:
        chain.load_state_dict(dict(state.dense))
    except RuntimeError as error:
        raise CheckpointFailed(f"{checkpoint}: is of another model: {' '.join(str(error).split())}") from None
    return state
