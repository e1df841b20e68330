"""The sparse table in this process: a thin facade over the native core."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps import _native
from heterps.errors import InvalidInput
from heterps.store import snapshot
from heterps.store.arrays import as_flat_ids, as_ids, as_rows, rows_like
from heterps.store.checks import MOST_32_BITS, number, whole
from heterps.store.config import Optimizer, TableConfig
from heterps.store.interface import Ids, Pooling, Rows, Stats
from heterps.store.turns import Turns

_RULE = ("lr", "eps", "initial_accumulator", "momentum", "beta1", "beta2", "beta", "l1", "l2", "weight_decay",
         "clip_value", "clip_norm")  # fmt: skip
MOST_THREADS = 4096
"""Assumed to be more than any machine has cores for; the core numbers the parts of a call with 16 bits."""
_TABLE = ("name", "seed", "init_scale", "admit_after", "expire_steps", "expire_seconds", "counts")


class SparseTable:
    """Rows of `dim` floats under any int64 id, in this process. See `heterps.store.interface.Table` for the calls.

    Calls may come from several threads; they are applied one after the other, each with `threads` threads of its own,
    and without the interpreter's lock.
    """

    def __init__(
        self,
        *,
        dim: int,
        optimizer: str | Optimizer = "rowwise-adagrad",
        threads: int = 1,
        clock: Callable[[], float] = time.monotonic,
        **options: Any,
    ) -> None:
        """Makes an empty table.

        Args:
            dim: floats of a row.
            optimizer: a name or an `Optimizer`; the optimizer's numbers (`lr`, …) may be given as options here.
            threads: native threads of a call; results do not depend on it.
            clock: seconds, for expiry by time.
            **options: fields of `TableConfig` and of `Optimizer`.
        """
        table = {key: options.pop(key) for key in _TABLE if key in options}
        if isinstance(optimizer, Optimizer):
            if options:
                raise InvalidInput(f"options of the optimizer are in it already: {', '.join(options)}")
        else:
            unknown = options.keys() - set(_RULE)
            if unknown:
                raise InvalidInput(f"a table has no option {', '.join(map(repr, sorted(unknown)))}")
            optimizer = Optimizer(name=optimizer, **options)
        self._make(TableConfig(dim=dim, optimizer=optimizer, **table), threads, clock)

    @classmethod
    def from_config(
        cls, config: TableConfig, *, threads: int = 1, clock: Callable[[], float] = time.monotonic
    ) -> SparseTable:
        """An empty table of this configuration."""
        table = cls.__new__(cls)
        table._make(config, threads, clock)
        return table

    def _make(self, config: TableConfig, threads: int, clock: Callable[[], float]) -> None:
        whole("threads", threads, least=1, most=MOST_THREADS)
        rule = config.optimizer
        self.config = config
        self.snapshot_id = ""
        self._clock, self._began, self._turns = clock, clock(), Turns()
        self._core = _native.SparseTable(
            dim=config.dim, state_floats=config.state_floats, optimizer=rule.name,
            numbers=[float(getattr(rule, name)) for name in _RULE], seed=config.seed % 2**64, name=config.name,
            init_scale=config.init_scale, admit_after=config.admit_after, expire_steps=config.expire_steps,
            expire_seconds=math.ceil(config.expire_seconds), tracks=config.tracks, threads=threads,
        )  # fmt: skip

    @property
    def seconds(self) -> int:
        """Whole seconds since the table was made, as calls give them to the core; 0 if the clock went back before."""
        return max(0, int(self._clock() - self._began))

    def pull(self, ids: Ids, *, out: Rows | None = None, create: bool = True) -> Rows:
        """Rows of the ids; see `Table.pull`."""
        given = as_ids(ids)
        rows = rows_like(given, (*given.shape, self.config.dim), out)
        self._core.pull(given, rows, create, self.seconds)
        return rows if out is None else out

    def push(self, ids: Ids, grads: Rows) -> None:
        """Applies gradients; see `Table.push`."""
        given = as_ids(ids)
        self._core.push(given, as_rows(grads, (*given.shape, self.config.dim), "gradients"), self.seconds)

    def push_parts(self, ids: Sequence[NDArray[np.int64]], grads: Sequence[NDArray[np.float32]]) -> bool:
        """One push of several parts (ids of one axis, their gradients), as if they followed each other in one array.

        Nothing is looked up or copied for it, so each part must have been pulled lately. False if one was not: then
        nothing is pushed.
        """
        rows = [as_rows(own, (len(of), self.config.dim), "gradients") for of, own in zip(ids, grads, strict=True)]
        return self._core.push_parts([as_ids(own) for own in ids], rows)

    def pull_distinct(self, ids: Ids, *, number: Ids, rows: Rows) -> tuple[int, int]:
        """Rows of the distinct ids only, for whoever spreads them elsewhere, such as a GPU.

        Args:
            ids: as for `pull`.
            number: int32, as many as ids: gets the number of each id's row.
            rows: float32 [room for all ids, dim]: gets the rows, by number.

        Returns:
            How many rows there are, and a ticket for the push.
        """
        return self._core.pull_distinct(as_ids(ids), number, rows, self.seconds)

    def push_distinct(self, ids: Ids, grads: Rows, *, ticket: int) -> None:
        """Applies gradients [distinct ids, dim], summed and in the order of numbers that `pull_distinct` gave."""
        rows = as_rows(grads, (len(grads), self.config.dim), "gradients")
        self._core.push_distinct(as_ids(ids), ticket, rows, self.seconds)

    def errands(self, inbox: _native.Inbox, *, lag: int, await_event: int) -> _native.Errands:
        """Exchanges of distinct rows, done by threads of their own, that ring the inbox when one is done.

        Args:
            inbox: whose reader looks what is done.
            lag: a pull waits for the push of so many exchanges before it.
            await_event: address of a C function that waits for a device's event; 0 if there are no events.
        """
        return _native.Errands(self._core, inbox, lag, await_event)

    def clerk(self, bell: NDArray[np.uint8], *, parts: int, applied: int) -> _native.Clerk | None:
        """Who serves the desks of clients in other processes: their parts of each step are one push.

        Args:
            bell: `BELL_BYTES` of memory that clients have mapped, zero.
            parts: of a step.
            applied: the last step that is over.

        Returns:
            None for a table with a clock of its own, which native threads cannot look at.
        """
        if self._clock is not time.monotonic:
            return None
        return _native.Clerk(self._core, bell, parts, applied, self._began)

    def bag(
        self, ids: Ids, offsets: Ids, *, mode: Pooling = "sum", out: Rows | None = None, create: bool = True
    ) -> Rows:
        """One pooled row for each bag; see `Table.bag`."""
        given, starts = as_ids(ids), as_ids(offsets, "offsets")
        rows = rows_like(given, (_bags(given, starts), self.config.dim), out)
        with _offsets_explained():
            self._core.bag(given, starts, _is_mean(mode), rows, create, self.seconds)
        return rows if out is None else out

    def push_bag(self, ids: Ids, offsets: Ids, grads: Rows, *, mode: Pooling = "sum") -> None:
        """The push that belongs to `bag`; see `Table.push_bag`."""
        given, starts = as_ids(ids), as_ids(offsets, "offsets")
        rows = as_rows(grads, (_bags(given, starts), self.config.dim), "gradients")
        with _offsets_explained():
            self._core.push_bag(given, starts, _is_mean(mode), rows, self.seconds)

    def prepare(self, ids: Ids) -> None:
        """Looks up ids that are pulled soon, and makes the rows they lack: the pull then only copies rows.

        Row values are read by the pull, so pushes may come in between. Only for speed; a table that counts sights or
        lets rows expire does nothing here.
        """
        self._core.prepare(as_ids(ids), self.seconds)

    def peek(self, ids: Ids) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Rows and optimizer state of ids (one axis) as they are, first values where there is no row. Makes nothing."""
        given = as_flat_ids(ids)
        weights = np.empty((given.shape[0], self.config.dim), np.float32)
        state = np.empty((given.shape[0], self.config.state_floats), np.float32)
        self._core.peek(given, weights, state)
        return weights, state

    def put(self, ids: Ids, weights: Rows, state: Rows | None = None) -> None:
        """Sets rows of ids (one axis), and their optimizer state if given; makes the rows that are missing."""
        given = as_flat_ids(ids)
        rows = as_rows(weights, (given.shape[0], self.config.dim), "rows")
        kept = self.peek(given)[1] if state is None else state
        beside = as_rows(kept, (given.shape[0], self.config.state_floats), "state")
        self._core.put(given, rows, beside, self.seconds)

    def set_lr(self, lr: float) -> None:
        """Learning rate of later pushes."""
        Optimizer(name=self.config.optimizer.name, lr=lr)  # refuses what is no learning rate
        self._core.set_lr(lr)

    def counts(self, ids: Ids) -> NDArray[np.int64]:
        """Sights of each id; see `Table.counts`."""
        if not self.config.tracks:
            raise InvalidInput(f"table {self.config.name!r} keeps no counts; make it with counts=True")
        given = as_ids(ids)
        return self._core.counts(given, self.seconds).reshape(tuple(given.shape))

    def shrink(self, *, min_count: int = 0, unseen_steps: int = 0, unseen_seconds: float = 0.0) -> int:
        """Drops rows that are not worth their memory; see `Table.shrink`."""
        if (min_count or unseen_steps or unseen_seconds) and not self.config.tracks:
            raise InvalidInput(f"table {self.config.name!r} keeps no counts; make it with counts=True")
        whole("min_count", min_count)
        whole("unseen_steps", unseen_steps)
        number("unseen_seconds", unseen_seconds, most=MOST_32_BITS)
        with self._turns.take("shrink"):
            return self._core.shrink(min_count, unseen_steps, math.ceil(unseen_seconds), self.seconds)

    def stats(self) -> Stats:
        """What the table holds and has done."""
        rows, size, candidates, hits, creations, expired, steps = self._core.stats()
        return Stats(rows=rows, bytes=size, candidates=candidates, hits=hits, creations=creations, expired=expired,
                     steps=steps)  # fmt: skip

    def wait(self) -> None:
        """Nothing to wait for: pushes are applied when they return."""

    def save(self, path: str | PathLike[str], *, delta: bool = False, finite: bool = False) -> str:
        """Writes a snapshot of this moment; see `Table.save`."""
        with self._turns.take("save"):
            self.snapshot_id = snapshot.save(self._core, self.config, path, parent=self.snapshot_id if delta else None,
                                             seconds=self.seconds, finite=finite)  # fmt: skip
            return self.snapshot_id

    def load(
        self, path: str | PathLike[str], *, keep: Callable[[NDArray[np.int64]], NDArray[np.bool_]] | None = None
    ) -> None:
        """Replaces the contents by a snapshot's, or by those of all snapshots in a directory; see `Table.load`.

        With `keep`, only the ids for which it gives True: a shard's share of a table that was saved in others.
        """
        with self._turns.take("load"):
            self.snapshot_id = snapshot.load(self._core, self.config, path, parent=self.snapshot_id,
                                             clock=lambda: self.seconds, keep=keep)  # fmt: skip

    def scan(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]]:
        """Ids, rows and optimizer state of this moment, some at a time, in no order.

        Pulls and pushes go on meanwhile. Saves, loads, shrinks and other scans wait until it is over or closed; those
        of the thread that scans are refused.
        """
        with self._turns.take("scan"):
            yield from snapshot.scan(self._core)

    def export(self, path: str | PathLike[str]) -> None:
        """Writes (id, vector) as Parquet: the rows of this moment, in no order."""
        with self._turns.take("export"):
            snapshot.export(self._core, self.config, path)


def _bags(ids: Any, offsets: Any) -> int:
    if ids.ndim != 1 or offsets.ndim != 1:
        raise InvalidInput(f"ids and offsets of bags have one axis, not {ids.ndim} and {offsets.ndim}")
    return int(offsets.shape[0])


def _is_mean(mode: str) -> bool:
    if mode not in ("sum", "mean"):
        raise InvalidInput(f"mode is 'sum' or 'mean', not {mode!r}")
    return mode == "mean"


class _offsets_explained:  # noqa: N801
    """Turns the core's refusal of offsets into the error users know."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is ValueError:
            raise InvalidInput(str(error)) from None
