"""The tables of a server, and what each verb does to them. Runs in worker threads; knows nothing of sockets."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps._native import Clerk
from heterps.errors import HeterPSError, InvalidInput, did_you_mean
from heterps.ps.gathering import Gathering, Part, Step
from heterps.ps.meeting import Ground, Guest, Meeting, clerk_for
from heterps.ps.rows import COMPRESS, pack, unpack
from heterps.ps.shards import shard_of
from heterps.ps.snapshots import fetched
from heterps.ps.waiting import Ahead, Waiting
from heterps.ps.wire import MAX_ARRAYS, MAX_FRAME_BYTES, Array, Operation, Reply
from heterps.storage import Url, place, to_write
from heterps.store.config import TableConfig

log = logging.getLogger("heterps.ps")

MakeTable = Callable[[TableConfig], Any]
"""Makes a local table: a `Table` whose `load` also takes `keep`, a function from ids to a mask of those to keep. It may
have `push_parts` (see `SparseTable`)."""
Room = Callable[[tuple[int, int]], NDArray[np.float32] | None]
"""Memory for rows of a shape that the client can read where they are; None if there is none."""
Answer = tuple[Any, Reply]
"""A client, and what it gets."""
MAX_TABLES = 4096
MAX_DIM = 65_536
HELD_BYTES = 1 << 30
"""Parts of pushes that wait for others; beyond, further ones are refused (assumed)."""
READING = frozenset({"pull", "counts", "stats", "open"})
"""Verbs that may be run again when their reply was lost: they change nothing (a repeated pull counts no sights)."""
SILENT = frozenset({"push", "push_part", "put", "set_lr", "abandon"})
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
    gathering: Gathering = field(default_factory=Gathering)
    waiting: Waiting = field(default_factory=Waiting)
    meeting: Meeting = field(default_factory=Meeting)
    clerk: Clerk | None = None
    """Who takes the parts, if clients hand them in at desks; then they do not come as operations."""

    def close(self, why: str) -> None:
        """Ends the clerk, if there is one."""
        if self.clerk is not None:
            self.repeats += self.clerk.repeats
            self.clerk.close(why)
            self.clerk = None

    def abandon(self) -> Iterator[tuple[Any, int, str]]:
        """Drops what waits for parts of other clients; gives each client, the number of its operation, and why."""
        self.close("what was open was abandoned")
        for guest in self.meeting.leave():
            yield guest.client, guest.seq, "the meeting was abandoned"
        for part in self.gathering.abandon():
            yield part.client, part.seq, _abandoned(part)
        for pull in self.waiting.abandon():
            yield pull.client, pull.operation.seq, f"a pull after step {pull.after} was abandoned with the step"

    def keeps(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which ids belong to this shard."""
        kept: NDArray[np.bool_] = shard_of(ids, self.shards) == self.shard
        return kept


class Host:
    """Named tables. Operations on one table must come one at a time, but `save` may run beside them."""

    def __init__(self, make_table: MakeTable) -> None:
        self._make = make_table
        self.tables: dict[str, Hosted] = {}

    def run(
        self, operation: Operation, *, again: bool = False, client: Any = None, room: Room | None = None,
        ground: Ground | None = None,
    ) -> list[Answer]:  # fmt: skip
        """Does one operation of a client. Never raises.

        Args:
            operation: what to do.
            again: it was done before, and its reply is lost.
            client: who asks; comes back with the reply.
            room: memory that this client reads in place.
            ground: what this client and the server share.

        Returns:
            The reply, and those to parts and pulls of all clients that it has completed. They leave together: who is
            answered first would only take cores from the answers to the others, and then wait for these.
        """
        answers: list[Answer] = []
        reply = _answered(operation, lambda: self._run(operation, again, client, room, ground, answers))
        answers.append((client, reply))
        hosted = self.tables.get(operation.table)
        if hosted is not None and operation.verb == "push_part":
            for pull in hosted.waiting.due(hosted.gathering.applied):
                rows = _answered(pull.operation, partial(_pull, hosted, pull.operation, pull.room))
                answers.append((pull.client, rows))
        return answers

    def _run(
        self, operation: Operation, again: bool, client: Any, room: Room | None, ground: Ground | None,
        others: list[Answer],
    ) -> tuple[Any, list[Array]] | Reply:  # fmt: skip
        verb, args = operation.verb, operation.args
        if verb not in _VERBS and verb not in _OTHERS:
            raise InvalidInput(f"no verb {verb!r}.{did_you_mean(verb, [*_VERBS, *_OTHERS])}")
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
        if verb == "pull":
            after = None if args.get("after") is None or again else _take(args, "after", int)
            if after is not None and after < 0:
                raise InvalidInput(f"pull: after a step from 0 on, not {after}")
            if after is None or (hosted.gathering.applied is not None and hosted.gathering.applied >= after):
                return _pull(hosted, operation, None if again else room, again=again)
            _without_desks(hosted)
            return self._ahead(hosted, Ahead(client, operation, after, room))
        if verb == "push_part":
            _without_desks(hosted)
            return self._part(hosted, operation, client, others)
        if verb == "meet":
            return self._meet(hosted, operation, client, ground, others)
        if verb in ("abandon", "load"):  # what was held belongs to a past that is over
            for one, seq, what in hosted.abandon():
                others.append((one, Reply(seq, "error", what)))
        return (None, []) if verb == "abandon" else _VERBS[verb](hosted, args, operation.arrays)

    def reply_bytes(self, operation: Operation) -> int:
        """The most that an operation's reply takes, in bytes of arrays. Safe beside `run`."""
        if operation.verb not in ("pull", "counts") or not operation.arrays:
            return 0
        if operation.verb == "counts":
            return operation.arrays[0].nbytes
        hosted = self.tables.get(operation.table)
        dim = MAX_DIM if hosted is None else hosted.config.dim  # it may be opened before the pull's turn comes
        return min(4 * dim * operation.arrays[0].size, MAX_FRAME_BYTES)

    def _check_room(self, more: int) -> None:
        """Refuses to hold more than there is room for."""
        held = sum(other.gathering.held_bytes + other.waiting.held_bytes for other in list(self.tables.values()))
        if held + more > HELD_BYTES:
            raise InvalidInput(f"parts of {held} bytes wait for others already; is a client missing?")

    def _ahead(self, hosted: Hosted, pull: Ahead) -> Reply:
        """Holds a pull until the step before it is applied, and does what can be done for it now."""
        self._check_room(pull.operation.nbytes)
        (ids,) = _check(pull.operation.arrays, 1)
        prepare = getattr(hosted.table, "prepare", None)
        if prepare is not None and pull.operation.args.get("create"):
            prepare(ids)
        hosted.waiting.add(pull)
        return Reply(pull.operation.seq, "held")

    def _part(self, hosted: Hosted, operation: Operation, client: Any, others: list[Answer]) -> Reply:
        """Takes a part, and applies every step that is complete now, in order."""
        part = _part_of(hosted, operation, client)
        self._check_room(part.nbytes)
        hosted.gathering.add(part)
        reply = Reply(operation.seq, "held")
        while (step := hosted.gathering.take()) is not None:
            outcome = _answered(operation, partial(_apply, hosted, step))
            for one in step.in_order():
                answer = dataclasses.replace(outcome, seq=one.seq)
                if one is part:
                    reply = answer
                else:
                    others.append((one.client, answer))
        return reply

    def _meet(
        self, hosted: Hosted, operation: Operation, client: Any, ground: Ground | None, others: list[Answer]
    ) -> Reply:
        """Has a client wait for the others. When the last one has come, all learn where the clerk is, if anywhere."""
        args = operation.args
        parts, first, desk = _take(args, "parts", int), _take(args, "step", int), args.get("desk")
        own = tuple(_take(args, "own", list))
        guest = Guest(client, operation.seq, own, ground if type(desk) is int else None, desk or 0)
        for gone in hosted.meeting.join(guest, parts=parts, first=first):
            others.append((gone.client, Reply(gone.seq, "error", "another meeting has begun")))
        if not hosted.meeting.complete:
            return Reply(operation.seq, "held")
        guests = hosted.meeting.leave()
        hosted.close("clients have met anew")
        made = clerk_for(hosted.table, guests, parts=parts, first=first)
        hosted.clerk, place = made or (None, None)
        value = None if place is None else list(place)
        others += [(other.client, Reply(other.seq, "ok", value)) for other in guests if other is not guest]
        return Reply(operation.seq, "ok", value)

    def close(self) -> None:
        """Ends what goes on beside the operations."""
        for hosted in self.tables.values():
            hosted.close("the server has ended")

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


def _answered(operation: Operation, call: Callable[[], tuple[Any, list[Array]] | Reply]) -> Reply:
    """The reply that a call gives or makes up; errors are replies too."""
    try:
        result = call()
        return result if isinstance(result, Reply) else Reply(operation.seq, "ok", *result)
    except InvalidInput as error:
        return Reply(operation.seq, "invalid", str(error))
    except HeterPSError as error:
        return Reply(operation.seq, "error", str(error))
    except OSError as error:  # a full disk, a directory that is not there: nothing to look for in the code
        log.warning("%s on table %r failed: %s", operation.verb, operation.table, error)
        return Reply(operation.seq, "error", f"{operation.verb} on a server failed: {error}")
    except Exception as error:
        log.exception("%s on table %r failed", operation.verb, operation.table)
        return Reply(operation.seq, "error", f"{operation.verb}: {type(error).__name__}: {error}")


def _pull(hosted: Hosted, operation: Operation, room: Room | None, *, again: bool = False) -> tuple[Any, list[Array]]:
    """The rows; `again`: nothing is counted or made for it."""
    args = operation.args
    (ids,) = _check(operation.arrays, 1)
    size = len(ids) * hosted.config.dim * 4
    if size > MAX_FRAME_BYTES:
        raise InvalidInput(f"pull: {len(ids)} rows are {size} bytes, more than a frame of {MAX_FRAME_BYTES}")
    wire = args.get("wire")
    if wire is not None and wire not in COMPRESS:
        raise InvalidInput(f"pull: compress is one of {', '.join(COMPRESS)}, not {wire!r}")
    create, repeats, piece = _take(args, "create", bool) and not again, args.get("repeats", 0), args.get("piece")
    if piece is not None and (type(piece) is not int or piece < 1 or len(ids) > piece * MAX_ARRAYS):
        raise InvalidInput(f"pull: rows of an array: at least 1, and at most {MAX_ARRAYS} arrays, not {piece!r}")
    out = room((len(ids), hosted.config.dim)) if room is not None and wire is None else None
    rows = hosted.table.pull(ids, out=out, create=create)
    if out is not None and rows is not out:  # a table that does not care: what was lent must be sent
        out[...] = rows
        rows = out
    if create and isinstance(repeats, int) and repeats > 0:
        hosted.repeats += repeats
    if out is not None or piece is None:
        return None, [pack(rows, wire)]
    return None, [pack(rows[at : at + piece], wire) for at in range(0, max(1, len(ids)), piece)]


def _push(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    hosted.table.push(*_rows(hosted, arrays, "push: gradients"))
    return None, []


def _put(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    hosted.table.put(*_rows(hosted, arrays, "put: rows"))
    return None, []


def _rows(hosted: Hosted, arrays: list[Array], what: str) -> tuple[Array, Array]:
    """Ids, and a row of floats for each."""
    ids, rows = _check(arrays, 2)
    if rows.dtype == np.int64 or rows.shape != (len(ids), hosted.config.dim):
        raise InvalidInput(
            f"{what} of table {hosted.config.name!r} are floats of shape {(len(ids), hosted.config.dim)}, "
            f"not {rows.dtype} of {rows.shape}"
        )
    return ids, unpack(rows)


def _part_of(hosted: Hosted, operation: Operation, client: Any) -> Part:
    args = operation.args
    step, part, parts, piece, pieces = (_take(args, name, int) for name in ("step", "part", "parts", "piece", "pieces"))
    lr = None if args.get("lr") is None else float(_take(args, "lr", (int, float)))
    ids, grads = _rows(hosted, operation.arrays, "push: gradients")
    return Part(client, operation.seq, step, part, parts, piece, pieces, lr, ids, grads)


def _apply(hosted: Hosted, step: Step) -> tuple[Any, list[Array]]:
    """One push of all parts of a step, in their order, at the learning rate that they name."""
    if step.lr is not None:
        hosted.table.set_lr(step.lr)
    parts = step.in_order()
    filled = [part for part in parts if len(part.ids)]
    ids, grads = [part.ids for part in filled or parts[:1]], [part.grads for part in filled or parts[:1]]
    if len(filled) > 1:
        push_parts = getattr(hosted.table, "push_parts", None)
        if push_parts is not None and push_parts(ids, grads):
            return None, []
        ids, grads = [np.concatenate(ids)], [np.concatenate(grads)]
    hosted.table.push(ids[0], grads[0])
    return None, []


def _abandoned(part: Part) -> str:
    return f"part {part.part} of step {part.step} was abandoned: the step was never complete, nothing of it is applied"


def _without_desks(hosted: Hosted) -> None:
    """All parts of a step have to come the same way."""
    if hosted.clerk is not None:
        raise InvalidInput(f"clients of table {hosted.config.name!r} hand in their parts at desks; meet them there")


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
    repeats = hosted.repeats + (0 if hosted.clerk is None else hosted.clerk.repeats)
    return {**stats, "hits": stats["hits"] + repeats}, []


def _save(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    path, identity, delta = _take(args, "path", str), _take(args, "id", str), _take(args, "delta", bool)
    finite = _take(args, "finite", bool)
    parent = hosted.snapshot
    if delta and not parent:
        raise InvalidInput(f"{path}: a delta needs a snapshot before it; save the table whole first")
    target = place(path)
    try:
        with to_write(target) as file:
            hosted.table.save(str(file), delta=delta, finite=finite)
    except BaseException:
        if isinstance(target, Url):
            hosted.snapshot = ""  # the table takes its rows for saved, but the upload failed: a delta would lack them
        raise
    hosted.snapshot = identity
    return parent, []


def _load(hosted: Hosted, args: dict[str, Any], arrays: list[Array]) -> tuple[Any, list[Array]]:
    path, identity, parent = _take(args, "path", str), _take(args, "id", str), _take(args, "parent", str)
    if parent and parent != hosted.snapshot:
        held = hosted.snapshot or "none"
        raise InvalidInput(f"{path}: a delta on top of snapshot {parent}, but the table holds {held}; load that first")
    with fetched(place(path), hosted.shard, hosted.shards) as local:
        hosted.table.load(str(local), keep=hosted.keeps if hosted.shards > 1 else None)
    hosted.snapshot, hosted.repeats = identity, 0
    return None, []


_OTHERS = ("open", "pull", "push_part", "meet", "abandon")
_VERBS = {
    "push": _push, "put": _put, "set_lr": _set_lr, "counts": _counts, "shrink": _shrink, "stats": _stats,
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
