"""The tables of a server, and what each verb does to them. Runs in worker threads; knows nothing of sockets."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.errors import HeterPSError, InvalidInput, did_you_mean
from heterps.ps.rows import COMPRESS, pack, unpack
from heterps.ps.shards import shard_of
from heterps.ps.wire import MAX_FRAME_BYTES, Array, Operation, Reply
from heterps.store.config import TableConfig

log = logging.getLogger("heterps.ps")

MakeTable = Callable[[TableConfig], Any]
"""Makes a local table: a `Table` whose `load` also takes `keep`, a function from ids to a mask of those to keep."""
MAX_TABLES = 4096
READING = frozenset({"pull", "counts", "stats", "open"})
"""Verbs that may be run again when their reply was lost: they change nothing (a repeated pull counts no sights)."""
SILENT = frozenset({"push", "set_lr"})
"""Verbs without a result: a repeated one is simply confirmed."""


@dataclass(slots=True)
class Hosted:
    """One shard of a table."""

    table: Any
    config: TableConfig
    shard: int
    shards: int
    snapshot: str = ""
    """The snapshot, of all shards, that the next delta starts from; empty: none."""

    repeats: int = 0
    """Duplicates that clients removed from creating pulls: hits too, as they come after the first."""

    def keeps(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which ids belong to this shard."""
        kept: NDArray[np.bool_] = shard_of(ids, self.shards) == self.shard
        return kept


class Host:
    """Named tables. Operations on one table must come one at a time, but `save` may run beside them."""

    def __init__(self, make_table: MakeTable) -> None:
        self._make = make_table
        self.tables: dict[str, Hosted] = {}

    def run(self, operation: Operation, *, again: bool = False) -> Reply:
        """Does one operation. `again`: it was done before, and its reply is lost. Never raises."""
        try:
            value, arrays = self._run(operation, again=again)
            return Reply(operation.seq, "ok", value, arrays)
        except InvalidInput as error:
            return Reply(operation.seq, "invalid", str(error))
        except HeterPSError as error:
            return Reply(operation.seq, "error", str(error))
        except Exception as error:
            log.exception("%s on table %r failed", operation.verb, operation.table)
            return Reply(operation.seq, "error", f"{operation.verb}: {type(error).__name__}: {error}")

    def _run(self, operation: Operation, *, again: bool) -> tuple[Any, list[Array]]:
        verb, args = operation.verb, operation.args
        if verb not in _VERBS and verb != "open":
            raise InvalidInput(f"no verb {verb!r}.{did_you_mean(verb, [*_VERBS, 'open'])}")
        if again and verb in SILENT:
            return None, []
        if again and verb not in READING:
            raise HeterPSError(f"{verb}: was done before the server restarted, but its result is lost")
        if verb == "open":
            self.open(operation.table, args)
            return None, []
        hosted = self.tables.get(operation.table)
        if hosted is None:
            hint = did_you_mean(operation.table, self.tables)
            raise InvalidInput(f"no table {operation.table!r} on this server; open it first.{hint}")
        if again and verb == "pull":
            args = {**args, "create": False}
        return _VERBS[verb](hosted, args, operation.arrays)

    def open(self, name: str, args: dict[str, Any]) -> Hosted:
        """Makes a table, or finds the one of that name, which must have the same configuration."""
        config = TableConfig.from_dict(_take(args, "config", dict))
        shard, shards = _take(args, "shard", int), _take(args, "shards", int)
        if not 0 <= shard < shards <= 65_536:
            raise InvalidInput(f"table {name!r}: shard {shard} of {shards} does not exist")
        if config.name != name:
            raise InvalidInput(f"table {name!r}: its configuration names it {config.name!r}")
        hosted = self.tables.get(name)
        if hosted is None:
            if len(self.tables) >= MAX_TABLES:
                raise InvalidInput(f"a server hosts at most {MAX_TABLES} tables")
            hosted = self.tables[name] = Hosted(self._make(config), config, shard, shards)
        elif hosted.config != config:
            raise InvalidInput(f"table {name!r} is open with another configuration: {hosted.config}, not {config}")
        elif (hosted.shard, hosted.shards) != (shard, shards):
            raise InvalidInput(
                f"table {name!r}: this server holds shard {hosted.shard} of {hosted.shards}, not {shard} of {shards}; "
                f"give all clients the same addresses in the same order"
            )
        return hosted


def _pull(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    (ids,) = _check(arrays, 1)
    size = len(ids) * hosted.config.dim * 4
    if size > MAX_FRAME_BYTES:
        raise InvalidInput(f"pull: {len(ids)} rows are {size} bytes, more than a frame of {MAX_FRAME_BYTES}")
    wire = args.get("wire")
    if wire is not None and wire not in COMPRESS:
        raise InvalidInput(f"pull: compress is one of {', '.join(COMPRESS)}, not {wire!r}")
    create, repeats = _take(args, "create", bool), args.get("repeats", 0)
    rows = hosted.table.pull(ids, create=create)
    if create and isinstance(repeats, int) and repeats > 0:
        hosted.repeats += repeats
    return None, [pack(rows, wire)]


def _push(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    ids, grads = _check(arrays, 2)
    if grads.dtype == np.int64 or grads.shape != (len(ids), hosted.config.dim):
        raise InvalidInput(
            f"push: gradients of table {hosted.config.name!r} are floats of shape {(len(ids), hosted.config.dim)}, "
            f"not {grads.dtype} of {grads.shape}"
        )
    hosted.table.push(ids, unpack(grads))
    return None, []


def _set_lr(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    hosted.table.set_lr(float(_take(args, "lr", (int, float))))
    return None, []


def _counts(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    return None, [np.asarray(hosted.table.counts(_check(arrays, 1)[0]), np.int64)]


def _shrink(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    dropped = hosted.table.shrink(
        min_count=_take(args, "min_count", int),
        unseen_steps=_take(args, "unseen_steps", int),
        unseen_seconds=float(_take(args, "unseen_seconds", (int, float))),
    )
    return int(dropped), []


def _stats(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    stats = {name: int(value) for name, value in dataclasses.asdict(hosted.table.stats()).items()}
    return {**stats, "hits": stats["hits"] + hosted.repeats}, []


def _save(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    path, identity, delta = _take(args, "path", str), _take(args, "id", str), _take(args, "delta", bool)
    parent = hosted.snapshot
    if delta and not parent:
        raise InvalidInput(f"{path}: a delta needs a snapshot before it; save the table whole first")
    hosted.table.save(path, delta=delta)
    hosted.snapshot = identity
    return parent, []


def _load(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    path, identity, parent = _take(args, "path", str), _take(args, "id", str), _take(args, "parent", str)
    if parent and parent != hosted.snapshot:
        held = hosted.snapshot or "none"
        raise InvalidInput(f"{path}: a delta on top of snapshot {parent}, but the table holds {held}; load that first")
    hosted.table.load(path, keep=hosted.keeps if hosted.shards > 1 else None)
    hosted.snapshot, hosted.repeats = identity, 0
    return None, []


_VERBS = {
    "pull": _pull, "push": _push, "set_lr": _set_lr, "counts": _counts, "shrink": _shrink, "stats": _stats,
    "save": _save, "load": _load,
}  # fmt: skip


def _check(arrays: list[Array], count: int) -> list[Array]:
    if len(arrays) != count or arrays[0].dtype != np.int64 or arrays[0].ndim != 1:
        raise InvalidInput(f"ids are one axis of int64{', followed by gradients' if count == 2 else ''}")
    return arrays


def _take(args: dict[str, Any], name: str, kind: Any) -> Any:
    value = args.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidInput(f"argument {name!r} is missing or of the wrong type: {value!r}")
    return value
