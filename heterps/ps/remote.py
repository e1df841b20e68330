"""A table on parameter servers, with the interface of a local one."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.errors import InvalidInput
from heterps.ps import snapshots
from heterps.ps.arrays import ids_of, like, rows_for, rows_of
from heterps.ps.bags import check_bags, pool, spread
from heterps.ps.coming import Coming, all_of, as_sent, spread_rows
from heterps.ps.desk import Desk
from heterps.ps.outstanding import Answer, Outstanding, Ticket
from heterps.ps.rows import pack
from heterps.ps.shards import Batch, Int64, Recent, batch_of, grouped
from heterps.ps.submitter import Submitter
from heterps.ps.wire import MAX_ARRAYS, MAX_FRAME_BYTES, Reply
from heterps.storage import place
from heterps.store.config import Optimizer, TableConfig
from heterps.store.interface import Ids, Pooling, Rows, Stats

CHUNK_BYTES = MAX_FRAME_BYTES // 2
"""Rows in one operation; larger pulls and pushes are several (and such a push counts as several steps)."""


class RemoteTable:
    """A `Table` whose rows lie on the client's servers, split by a hash of their ids.

    Pushes return at once; `wait` returns when they are applied and raises the first error among them. Pulls of the same
    client see its earlier pushes. Duplicates are removed before sending, unless they are few or the table counts
    sights. Several clients may each `push_part` of a step's gradients, which the servers apply as one push.
    """

    def __init__(self, client: Submitter, config: TableConfig) -> None:
        self._client = client
        self._config = config
        self._recent = Recent()
        self._outstanding = Outstanding()
        self._chunk = max(1, CHUNK_BYTES // (4 * config.dim))
        self._meeting = threading.Lock()
        self._met: list[Callable[[], Desk | None]] = []
        """Of each shard, what gives the desk there. They wait until all have met."""
        self._desks: list[Desk | None] = []
        """The desks, once all have met; a table that nobody meets at has none."""

    @property
    def config(self) -> TableConfig:
        """What the table was made with."""
        return self._config

    def prepare(self, ids: Ids) -> None:
        """Does what can be done ahead of a pull of these ids, and of the push after it: the pull is then a round trip.

        Tells the distinct ids and their shards; sends nothing and makes no row. Only for speed.
        """
        self._recent.batch(ids_of(ids).reshape(-1), self._client.shards)

    def pull(self, ids: Ids, *, out: Rows | None = None, create: bool = True) -> Rows:
        """Rows of `ids`; see `Table.pull`."""
        array = ids_of(ids)
        shape = (*array.shape, self._config.dim)
        given = None if out is None else rows_for(ids, shape, out)  # refused before anything is asked
        counting = create and self._config.tracks  # sights count by occurrence: duplicates stay
        flat, shards = array.reshape(-1), self._client.shards
        batch = grouped(flat, shards) if counting else self._recent.batch(flat, shards)
        replies = all_of(self._rows(batch, create=create))
        if given is None and (rows := as_sent(batch, replies)) is not None:
            return like(ids, rows.reshape(shape))
        result, memory = given or rows_for(ids, shape, None)
        spread_rows(batch, replies, memory)
        return result

    def pull_after(self, ids: Ids, step: int) -> Coming:
        """Asks for rows as they are when all parts of `step` are applied (see `push_part`), and returns at once.

        The servers look the ids up now, and send the rows as soon as that step is over: nobody has to wait for its end
        to ask then. A step that no part ever comes for is waited for without end, until it is abandoned.
        """
        array = ids_of(ids)
        flat, shards = array.reshape(-1), self._client.shards
        if self._config.tracks:
            batch = grouped(flat.copy(), shards)
        elif all(self._open_desks()):  # the ids are copied there, and are not looked for again
            batch = batch_of(flat, shards)
        else:
            batch = self._recent.batch(flat, shards)
        return Coming(batch, self._ahead(batch, step), (*array.shape, self._config.dim))

    def meet(self, *, step: int, own: Sequence[int], parts: int) -> None:
        """Says that this client has the parts `own` of each step from `step` on; returns at once.

        Whoever has one of the `parts` says so. If all of them share memory with a server, they hand their parts in, and
        ask for rows ahead, at desks there: that costs no messages, and is the only way then. Else messages do it. Which
        it is shows when all have met; pulls ahead and pushes of parts wait for that.
        """
        args = {"step": _whole(step, "step"), "own": list(own), "parts": _whole(parts, "parts")}
        with self._meeting:
            self._met = [self._client.meet(shard, self._config.name, args) for shard in range(self._client.shards)]
            self._desks = []

    @property
    def asks_early(self) -> bool:
        """Whether rows may be asked for however early, even after a step that was before the first one."""
        return bool(self._open_desks()) and all(self._desks)

    def _open_desks(self) -> list[Desk | None]:
        """The desk at each shard, if it has one. Waits until all have met, if they do."""
        if not self._desks:
            with self._meeting:
                if not self._desks:
                    self._desks = [met() for met in self._met] or [None] * self._client.shards
        return self._desks

    def push(self, ids: Ids, grads: Rows) -> None:
        """Sends gradients and returns; see `Table.push`."""
        batch = self._recent.batch(ids_of(ids).reshape(-1), self._client.shards)
        for shard, start, end, _, _, rows in self._sums(batch, ids, grads, desks=[]):
            self._outstanding.push(self._submit(shard, "push", {}, *self._packed(shard, batch.ids[start:end], rows)))

    def put(self, ids: Ids, weights: Rows) -> None:
        """Sets rows, exactly, and waits until the servers have; see `Table.put`."""
        array, dim = ids_of(ids), self._config.dim
        if array.ndim != 1 or len(np.unique(array)) != len(array):
            raise InvalidInput("put takes distinct ids, on one axis")
        given = rows_of(weights, (len(array), dim))
        batch = grouped(array, self._client.shards)
        by_shard = given if batch.place is None else np.empty_like(given)
        if batch.place is not None:
            by_shard[batch.place] = given
        futures = []
        for shard, start, end in self._chunks(batch, empty=False):
            rows = self._client.room(shard, (end - start, dim), np.float32)
            rows[...] = by_shard[start:end]
            futures.append(self._submit(shard, "put", {}, self._placed(shard, batch.ids[start:end]), rows))
        all_of(futures)

    def push_part(
        self, ids: Ids, grads: Rows, *, step: int, part: int, parts: int, lr: float | None = None,
        coming: Coming | None = None,
    ) -> Ticket:  # fmt: skip
        """Sends one of the `parts` of a step's gradients and returns; the servers apply them as one push.

        They put the parts together in the order of their numbers, whoever comes first, and apply them when all are
        there; steps are applied in order, if the same clients have parts in each. Pulls see what is applied, and wait
        for nothing.

        Args:
            ids: as for `push`; there may be none, which is still a part.
            grads: as for `push`.
            step: at least 0; a step is over once it is applied.
            part: its number, from 0. Another client's part of the same number is refused.
            parts: how many the step has; all clients say the same.
            lr: learning rate from this step on; parts that name one must agree.
            coming: what `pull_after` gave for these very ids, in this order: they are not looked at again.

        Returns:
            What to wait for. An error, such as that of a step abandoned by others, is raised there or by `wait`.
        """
        if not 0 <= part < parts:
            raise InvalidInput(f"a part from 0 to {parts - 1}, not {part}")
        whole = {"step": _whole(step, "step"), "part": _whole(part, "part"), "parts": _whole(parts, "parts")}
        rate = None if lr is None else Optimizer(name=self._config.optimizer.name, lr=float(lr)).lr
        if coming is None or coming.spent or self._config.tracks:  # where sights are counted, a pull has its repeats
            coming, batch = None, self._recent.batch(ids_of(ids).reshape(-1), self._client.shards)
        else:
            coming.spent, batch = True, coming.batch
        answers: list[Answer] = []
        desks = self._open_desks()
        for shard, start, end, piece, pieces, rows in self._sums(batch, ids, grads, desks=desks):
            desk, own = desks[shard], batch.ids[start:end]
            if desk is not None:
                asked = coming.asked(desk) if coming is not None else None
                answers.append(desk.part(own if asked is None else asked, rows, step=step, part=part, lr=rate))
                continue
            args = {**whole, "lr": rate, "piece": piece, "pieces": pieces}
            answers.append(self._submit(shard, "push_part", args, *self._packed(shard, own, rows)))
        return self._outstanding.part(step, answers)

    def wait_for(self, step: int, *, timeout_s: float | None = None) -> None:
        """Returns when the steps up to `step` that this client has parts in are applied; raises the first error.

        Pulls of this client see them then, whoever sent the other parts. As long as the servers answer it waits for
        other clients without end; with `timeout_s`, `ServerTimeout` is raised after that, and the parts stay.
        """
        self._outstanding.wait_for(step, timeout_s)

    def abandon(self) -> None:
        """Drops the parts of all clients whose steps are not complete; steps may then begin anew with any number.

        Whoever waits for such a part gets a `ServerError`. Nothing of these steps is applied on the shards that lack a
        part; a shard that had all of them may have applied its own. `load` does the same.
        """
        self._every("abandon", {})

    def bag(
        self, ids: Ids, offsets: Ids, *, mode: Pooling = "sum", out: Rows | None = None, create: bool = True
    ) -> Rows:
        """Pooled rows, written to `out` if given; see `Table.bag`."""
        array, starts = check_bags(ids, offsets, mode)
        result, memory = rows_for(ids, (len(starts), self._config.dim), out)
        memory[...] = pool(self.pull(array, create=create), starts, mode)
        return result

    def push_bag(self, ids: Ids, offsets: Ids, grads: Rows, *, mode: Pooling = "sum") -> None:
        """Sends the gradients of pooled rows; see `Table.push_bag`."""
        array, starts = check_bags(ids, offsets, mode)
        given = rows_of(grads, (len(starts), self._config.dim))
        self.push(array, spread(given, starts, len(array), mode))

    def set_lr(self, lr: float) -> None:
        """Learning rate of later pushes."""
        self._every("set_lr", {"lr": float(lr)})

    def counts(self, ids: Ids) -> NDArray[np.int64]:
        """Sights of each id; see `Table.counts`."""
        array = ids_of(ids)
        batch = self._recent.batch(array.reshape(-1), self._client.shards)
        asked = [(s, e, self._ask(k, "counts", {}, batch.ids[s:e])) for k, s, e in self._chunks(batch, empty=True)]
        found = np.empty(len(batch.ids), np.int64)
        for start, end, future in asked:
            found[start:end] = future.result().arrays[0]
        return (found if batch.index is None else found[batch.index]).reshape(array.shape)

    def shrink(self, *, min_count: int = 0, unseen_steps: int = 0, unseen_seconds: float = 0.0) -> int:
        """Drops rows on all shards and says how many; see `Table.shrink`."""
        whole = {"min_count": _whole(min_count, "min_count"), "unseen_steps": _whole(unseen_steps, "unseen_steps")}
        args = {**whole, "unseen_seconds": float(unseen_seconds)}
        return sum(int(reply.value) for reply in self._every("shrink", args))

    def stats(self) -> Stats:
        """Sums over the shards; `steps` is the most of any."""
        each = [reply.value for reply in self._every("stats", {})]
        sums = {name: sum(stats[name] for stats in each) for name in each[0]}
        return Stats(**{**sums, "steps": max(stats["steps"] for stats in each)})

    def wait(self) -> None:
        """Returns when every push so far is applied; raises the first error among them."""
        self._outstanding.wait()

    def save(self, path: str | PathLike[str], *, delta: bool = False, finite: bool = False) -> str:
        """Every server writes its shard into the directory `path`, which all share; then a manifest makes it valid.

        The path may be a URL of storage: the servers put their shards there themselves.
        """
        self.wait()
        directory = place(path)
        snapshots.make(directory)
        identity, shards = uuid.uuid4().hex, self._client.shards
        files = snapshots.file_names(identity, shards)
        args = [{"path": str(directory / file), "delta": delta, "id": identity, "finite": finite} for file in files]
        parents = {reply.value for reply in all_of([self._submit(k, "save", args[k]) for k in range(shards)])}
        if delta and len(parents) > 1:
            raise InvalidInput(f"{directory}: the last save of {self._config.name!r} failed on a shard; save it whole")
        snapshots.commit(directory, files, identity, parents.pop() if delta else "", self._config)
        return identity

    def load(self, path: str | PathLike[str]) -> None:
        """Every server reads the whole snapshot and keeps the ids of its shard, however many shards wrote it."""
        self.wait()
        source = place(path)
        snapshots.check_whole(source)
        identity, parent = snapshots.read(source) if source.is_dir() else ("", "")
        self._every("load", {"path": str(source), "id": identity, "parent": parent})

    def _chunks(
        self, batch: Batch, *, empty: bool, desks: Sequence[Desk | None] = ()
    ) -> Iterator[tuple[int, int, int]]:
        """(shard, start, end) of each operation; with `empty`, also one for a shard without ids. One for a desk."""
        for shard in range(self._client.shards):
            first, last = batch.bounds[shard], batch.bounds[shard + 1]
            most = max(1, last - first) if desks and desks[shard] is not None else self._chunk
            starts = range(first, last, most) if last > first else (first,) if empty else ()
            for start in starts:
                yield shard, start, min(start + most, last)

    def _rows(self, batch: Batch, *, create: bool) -> list[Future[Reply]]:
        """Asks for the batch's ids, in their order."""
        chunks = self._chunks(batch, empty=False)
        return [
            self._pull(batch, shard, start, end, {"create": create}, first=not number)
            for number, (shard, start, end) in enumerate(chunks)
        ]

    def _ahead(self, batch: Batch, after: int) -> list[Answer]:
        """The same, as they will be after a step."""
        answers: list[Answer] = []
        desks = self._open_desks()
        for shard, start, end in self._chunks(batch, empty=False, desks=desks):
            desk, first = desks[shard], not answers
            if desk is not None:
                repeats = batch.count - len(batch.ids) if first else 0
                answers.append(desk.ask(batch.ids[start:end], self._config.dim, after=after, repeats=repeats))
            else:
                args = {"create": True, "after": _whole(after, "step")}
                answers.append(self._pull(batch, shard, start, end, args, first=first))
        return answers

    def _pull(
        self, batch: Batch, shard: int, start: int, end: int, given: dict[str, Any], *, first: bool
    ) -> Future[Reply]:
        """One operation; the first one tells of the duplicates that were removed."""
        args: dict[str, Any] = {**given, "wire": None, "repeats": batch.count - len(batch.ids) if first else 0}
        if not self._client.shares(shard):  # in arrays of a frame each: nothing has to be put together
            most = max(1, self._client.piece_bytes(shard) // (4 * self._config.dim))
            args |= {"wire": self._client.compress, "piece": max(most, -(-(end - start) // MAX_ARRAYS))}
        return self._ask(shard, "pull", args, batch.ids[start:end])

    def _sums(
        self, batch: Batch, ids: Ids, grads: Rows, *, desks: Sequence[Desk | None]
    ) -> list[tuple[int, int, int, int, int, NDArray[np.float32]]]:
        """Shard, stretch of the batch's ids, piece, pieces and summed gradients of each operation of a push."""
        dim = self._config.dim
        given = rows_of(grads, (*ids_of(ids).shape, dim))
        chunks = list(self._chunks(batch, empty=True, desks=desks))
        sums = [self._sums_room(shard, (end - start, dim), desks) for shard, start, end in chunks]
        batch.sum_into(given.reshape(-1, dim), sums)
        pieces = Counter(shard for shard, _, _ in chunks)
        return [
            (shard, start, end, (start - batch.bounds[shard]) // self._chunk, pieces[shard], rows)
            for (shard, start, end), rows in zip(chunks, sums, strict=True)
        ]

    def _sums_room(self, shard: int, shape: tuple[int, int], desks: Sequence[Desk | None]) -> NDArray[np.float32]:
        desk = desks[shard] if desks else None
        if desk is None or not shape[0]:
            return self._client.room(shard, shape, np.float32)
        return desk.room(4 * shape[0] * shape[1])[1].view(np.float32).reshape(shape)

    def _packed(self, shard: int, ids: Int64, rows: NDArray[np.float32]) -> tuple[Int64, NDArray[Any]]:
        """Arrays of an operation that pushes."""
        packed = rows if self._client.shares(shard) else pack(rows, self._client.compress)
        return self._placed(shard, ids), packed

    def _placed(self, shard: int, ids: Int64) -> Int64:
        """Ids where the shard can read them; never in memory of the caller's, which may change."""
        if not self._client.shares(shard):
            return ids
        room = self._client.room(shard, ids.shape, np.int64)
        room[...] = ids
        return room

    def _ask(self, shard: int, verb: str, args: dict[str, Any], ids: Int64) -> Future[Reply]:
        return self._submit(shard, verb, args, self._placed(shard, ids))

    def _submit(self, shard: int, verb: str, args: dict[str, Any], *arrays: NDArray[Any]) -> Future[Reply]:
        return self._client.submit(shard, verb, self._config.name, args, arrays)

    def _every(self, verb: str, args: dict[str, Any]) -> list[Reply]:
        return all_of([self._submit(shard, verb, args) for shard in range(self._client.shards)])


def _whole(value: Any, what: str) -> int:
    """A whole number as messages hold it."""
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and 0 <= value < 2**62:
        return int(value)
    raise InvalidInput(f"{what}: a whole number from 0 on, not {value!r}")
