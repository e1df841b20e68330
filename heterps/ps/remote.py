"""A table on parameter servers, with the interface of a local one."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, wait
from os import PathLike
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from heterps.errors import InvalidInput
from heterps.ps import snapshots
from heterps.ps.arrays import like, to_numpy
from heterps.ps.bags import check_bags, pool, spread
from heterps.ps.rows import pack, unpack
from heterps.ps.shards import Float32, Index, Parts, Recent, gather, scatter_add, split
from heterps.ps.wire import MAX_FRAME_BYTES, Reply
from heterps.store.config import TableConfig
from heterps.store.interface import Ids, Pooling, Rows, Stats

CHUNK_BYTES = MAX_FRAME_BYTES // 2
"""Rows in one operation; larger pulls and pushes are several (and such a push counts as several steps)."""


class Submitter(Protocol):
    """What a remote table needs of its client."""

    compress: Any

    @property
    def shards(self) -> int:
        """Shards of every table."""
        ...

    def submit(self, shard: int, verb: str, table: str, args: dict[str, Any], arrays: Any = ()) -> Future[Reply]:
        """Sends one operation to one shard."""
        ...


class RemoteTable:
    """A `Table` whose rows lie on the client's servers, split by a hash of their ids.

    Pushes return at once; `wait` returns when they are applied and raises the first error among them. Pulls of the same
    client see its earlier pushes. Duplicates are removed before sending, unless the table counts sights.
    """

    def __init__(self, client: Submitter, config: TableConfig) -> None:
        self._client = client
        self._config = config
        self._recent = Recent()
        self._lock = threading.Lock()
        self._pushes: set[Future[Reply]] = set()
        self._failed: list[BaseException] = []
        self._chunk = max(1, CHUNK_BYTES // (4 * config.dim))

    @property
    def config(self) -> TableConfig:
        """What the table was made with."""
        return self._config

    def pull(self, ids: Ids, *, out: Rows | None = None, create: bool = True) -> Rows:
        """Rows of `ids`; see `Table.pull`."""
        array = to_numpy(ids, np.int64, "ids")
        shape = (*array.shape, self._config.dim)
        result = np.empty(shape, np.float32) if out is None else to_numpy(out, np.float32, "out")
        if result.shape != shape or not result.flags.c_contiguous or not result.flags.writeable:
            raise InvalidInput(f"out: writable, contiguous, of shape {shape}, not {result.shape}")
        ids_flat = np.ascontiguousarray(array).reshape(-1)
        counting = create and self._config.tracks  # sights count by occurrence: duplicates stay
        unique, inverse = (ids_flat, None) if counting else self._recent.distinct(ids_flat)
        parts = split(unique, self._client.shards)
        rows = self._rows(parts, create=create, repeats=len(ids_flat) - len(unique))
        index = _composed(parts.place(), inverse)
        flat = result.reshape(-1, self._config.dim)
        if index is None:
            flat[...] = rows
        else:
            gather(rows, index, flat)
        return like(result, ids) if out is None else out

    def push(self, ids: Ids, grads: Rows) -> None:
        """Sends gradients and returns; see `Table.push`."""
        array, given = to_numpy(ids, np.int64, "ids"), to_numpy(grads, np.float32, "grads")
        if given.shape != (*array.shape, self._config.dim):
            raise InvalidInput(f"grads: of shape {(*array.shape, self._config.dim)}, not {given.shape}")
        unique, inverse = self._recent.distinct(np.ascontiguousarray(array).reshape(-1))
        parts = split(unique, self._client.shards)
        sums = scatter_add(np.ascontiguousarray(given).reshape(-1, self._config.dim), inverse, len(unique))
        packed = pack(parts.arrange(sums), self._client.compress)
        for shard, start, end in self._chunks(parts, empty=True):
            future = self._submit(shard, "push", {}, parts.ids[start:end], packed[start:end])
            with self._lock:
                self._pushes.add(future)
            future.add_done_callback(self._pushed)

    def bag(self, ids: Ids, offsets: Ids, *, mode: Pooling = "sum", create: bool = True) -> Rows:
        """Pooled rows; see `Table.bag`."""
        array, starts = check_bags(ids, offsets, mode)
        return like(pool(self.pull(array, create=create), starts, mode), ids)

    def push_bag(self, ids: Ids, offsets: Ids, grads: Rows, *, mode: Pooling = "sum") -> None:
        """Sends the gradients of pooled rows; see `Table.push_bag`."""
        array, starts = check_bags(ids, offsets, mode)
        given = to_numpy(grads, np.float32, "grads")
        if given.shape != (len(starts), self._config.dim):
            raise InvalidInput(f"grads: of shape {(len(starts), self._config.dim)}, one row a bag, not {given.shape}")
        self.push(array, spread(given, starts, len(array), mode))

    def set_lr(self, lr: float) -> None:
        """Learning rate of later pushes."""
        self._every("set_lr", {"lr": float(lr)})

    def counts(self, ids: Ids) -> NDArray[np.int64]:
        """Sights of each id; see `Table.counts`."""
        array = to_numpy(ids, np.int64, "ids")
        unique, inverse = self._recent.distinct(np.ascontiguousarray(array).reshape(-1))
        parts = split(unique, self._client.shards)
        asked = [(s, e, self._submit(k, "counts", {}, parts.ids[s:e])) for k, s, e in self._chunks(parts, empty=True)]
        found = np.empty(len(parts.ids), np.int64)
        for start, end, future in asked:
            found[start:end] = future.result().arrays[0]
        return found[_composed(parts.place(), inverse)].reshape(array.shape)

    def shrink(self, *, min_count: int = 0, unseen_steps: int = 0, unseen_seconds: float = 0.0) -> int:
        """Drops rows on all shards and says how many; see `Table.shrink`."""
        args = {"min_count": min_count, "unseen_steps": unseen_steps, "unseen_seconds": float(unseen_seconds)}
        return sum(int(reply.value) for reply in self._every("shrink", args))

    def stats(self) -> Stats:
        """Sums over the shards; `steps` is the most of any."""
        each = [reply.value for reply in self._every("stats", {})]
        sums = {name: sum(stats[name] for stats in each) for name in each[0]}
        return Stats(**{**sums, "steps": max(stats["steps"] for stats in each)})

    def wait(self) -> None:
        """Returns when every push so far is applied; raises the first error among them."""
        with self._lock:
            pushes = list(self._pushes)
        wait(pushes)
        for future in pushes:
            self._pushed(future)  # the waiting ends before the callbacks run
        with self._lock:
            failed, self._failed = self._failed, []
        if failed:
            raise failed[0]

    def save(self, path: str | PathLike[str], *, delta: bool = False) -> str:
        """Every server writes its shard into the directory `path`, which all share; then a manifest makes it valid."""
        self.wait()
        directory = Path(path).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        identity, shards = uuid.uuid4().hex, self._client.shards
        files = [f"shard-{shard:05d}-of-{shards:05d}-{identity[:12]}.hps" for shard in range(shards)]
        args = [{"path": str(directory / file), "delta": delta, "id": identity} for file in files]
        parents = {reply.value for reply in _all([self._submit(k, "save", args[k]) for k in range(shards)])}
        if delta and len(parents) > 1:
            raise InvalidInput(f"{directory}: the last save of {self._config.name!r} failed on a shard; save it whole")
        snapshots.commit(directory, files, identity, parents.pop() if delta else "", self._config)
        return identity

    def load(self, path: str | PathLike[str]) -> None:
        """Every server reads the whole snapshot and keeps the ids of its shard, however many shards wrote it."""
        self.wait()
        source = Path(path).absolute()
        identity, parent = snapshots.read(source) if source.is_dir() else ("", "")
        self._every("load", {"path": str(source), "id": identity, "parent": parent})

    def _chunks(self, parts: Parts, *, empty: bool) -> Iterator[tuple[int, int, int]]:
        """(shard, start, end) of each operation; with `empty`, also one for a shard without ids."""
        for shard in range(self._client.shards):
            first, last = parts.bounds[shard], parts.bounds[shard + 1]
            starts = range(first, last, self._chunk) if last > first else (first,) if empty else ()
            for start in starts:
                yield shard, start, min(start + self._chunk, last)

    def _rows(self, parts: Parts, *, create: bool, repeats: int) -> Float32:
        """Rows of the parts, in their order; the servers are told of `repeats` duplicates that were removed."""
        chunks = list(self._chunks(parts, empty=False))
        args = {"create": create, "wire": self._client.compress}
        futures = [
            self._submit(shard, "pull", args if number else {**args, "repeats": repeats}, parts.ids[start:end])
            for number, (shard, start, end) in enumerate(chunks)
        ]
        if len(futures) == 1:
            return unpack(futures[0].result().arrays[0])
        rows = np.empty((len(parts.ids), self._config.dim), np.float32)
        for (_, start, end), future in zip(chunks, futures, strict=True):
            unpack(future.result().arrays[0], rows[start:end])
        return rows

    def _submit(self, shard: int, verb: str, args: dict[str, Any], *arrays: NDArray[Any]) -> Future[Reply]:
        return self._client.submit(shard, verb, self._config.name, args, arrays)

    def _every(self, verb: str, args: dict[str, Any]) -> list[Reply]:
        return _all([self._submit(shard, verb, args) for shard in range(self._client.shards)])

    def _pushed(self, future: Future[Reply]) -> None:
        with self._lock:
            if future in self._pushes:
                self._pushes.remove(future)
                error = future.exception()
                if error is not None:
                    self._failed.append(error)


def _composed(place: Index | None, inverse: Index | None) -> Index | None:
    """place[inverse], where None is the identity."""
    if place is None or inverse is None:
        return inverse if place is None else place
    return place[inverse]


def _all(futures: list[Future[Reply]]) -> list[Reply]:
    """All replies; waits for every one before the first error is raised, so that nothing stays under way."""
    wait(futures)
    return [future.result() for future in futures]
