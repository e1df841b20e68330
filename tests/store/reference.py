"""A slow table to check the fast ones against: a dict of rows, updated in float64 by the rules of `Optimizer`."""

from __future__ import annotations

import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps.errors import InvalidInput
from heterps.store.config import Optimizer, TableConfig
from heterps.store.interface import Stats

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    """SplitMix64's finalizer on a number of 64 bits."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def fnv1a64(data: bytes) -> int:
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def first_value(config: TableConfig, row_id: int) -> NDArray[np.float32]:
    """The value of a row before its first update: two elements from each mixed number, 24 bits an element."""
    key = mix((config.seed + mix(fnv1a64(config.name.encode()))) & MASK)
    h = mix((row_id & MASK) ^ key)
    row = np.empty(config.dim, np.float32)
    for j in range(config.dim):
        x = mix((h + (j // 2 + 1) * GOLDEN) & MASK)
        bits = (x & 0xFFFFFFFF) if j % 2 == 0 else x >> 32
        row[j] = np.float32((bits >> 8) * 2.0**-23 - 1) * np.float32(config.init_scale)
    return row


@dataclass
class Row:
    """One row: its value, the optimizer's state by name, and its life."""

    value: NDArray[np.float32]
    state: dict[str, NDArray[np.float32]]
    count: int = 0
    seen_step: int = 0
    seen_time: float = 0.0


@dataclass
class Candidate:
    """An id without a row yet."""

    count: int = 0
    seen_step: int = 0
    seen_time: float = 0.0


def first_state(o: Optimizer, dim: int) -> dict[str, NDArray[np.float32]]:
    shapes = {
        "sgd": {},
        "momentum": {"v": (dim, 0.0)},
        "adagrad": {"h": (dim, o.initial_accumulator)},
        "rowwise-adagrad": {"h": (1, o.initial_accumulator)},
        "adam": {"t": (1, 0.0), "m": (dim, 0.0), "v": (dim, 0.0)},
        "ftrl": {"z": (dim, 0.0), "n": (dim, o.initial_accumulator)},
    }
    return {key: np.full(size, value, np.float32) for key, (size, value) in shapes[o.name].items()}


def updated(o: Optimizer, lr: float, w: Any, s: dict[str, Any], g: Any) -> tuple[Any, dict[str, Any]]:
    """The row and state after one summed gradient, in float64; see `Optimizer` for the rules."""
    g = np.clip(g, -o.clip_value, o.clip_value)
    norm = np.sqrt((g**2).sum())
    if norm > o.clip_norm:
        g = g * (o.clip_norm / norm)
    g = g + o.weight_decay * w
    assert o.eps is not None
    if o.name == "sgd":
        return w - lr * g, {}
    if o.name == "momentum":
        v = o.momentum * s["v"] + g
        return w - lr * v, {"v": v}
    if o.name in ("adagrad", "rowwise-adagrad"):
        h = s["h"] + (g**2 if o.name == "adagrad" else (g**2).mean())
        return w - lr * g / (np.sqrt(h) + o.eps), {"h": h}
    if o.name == "adam":
        t = s["t"] + 1
        m = o.beta1 * s["m"] + (1 - o.beta1) * g
        v = o.beta2 * s["v"] + (1 - o.beta2) * g**2
        denominator = np.sqrt(v / (1 - o.beta2**t)) + o.eps
        return w - lr * (m / (1 - o.beta1**t)) / denominator, {"t": t, "m": m, "v": v}
    sigma = (np.sqrt(s["n"] + g**2) - np.sqrt(s["n"])) / lr
    z, n = s["z"] + g - sigma * w, s["n"] + g**2
    w = np.where(np.abs(z) <= o.l1, 0.0, (np.sign(z) * o.l1 - z) / ((o.beta + np.sqrt(n)) / lr + o.l2))
    return w, {"z": z, "n": n}


class ReferenceTable:
    """The `Table` protocol, as plainly as it can be written. Snapshots are a format of its own, without checksums."""

    def __init__(self, config: TableConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self._clock, self._lr = clock, config.optimizer.lr
        self._rows: dict[int, Row] = {}
        self._candidates: dict[int, Candidate] = {}
        self._hits = self._creations = self._expired = self._steps = 0
        self._at: set[str] = set()  # the snapshots, one of each shard, that deltas start from
        self._changed: set[int] = set()
        self._removed: set[int] = set()

    def pull(self, ids: Any, *, out: Any = None, create: bool = True) -> Any:
        array = self._ids(ids)
        result = np.empty((*array.shape, self.config.dim), np.float32)
        if out is not None:
            target = self._floats("out", out, result.shape)
        flat = result.reshape(-1, self.config.dim)
        if create:
            self._sight(array.reshape(-1).tolist())
        for i, row_id in enumerate(array.reshape(-1).tolist()):
            flat[i] = self._read(row_id)
        if out is None:
            return _like(result, ids)
        target[...] = result
        return out

    def push(self, ids: Any, grads: Any) -> None:
        array = self._ids(ids)
        g = self._floats("grads", grads, (*array.shape, self.config.dim)).reshape(-1, self.config.dim)
        self._apply(array.reshape(-1).tolist(), g.astype(np.float64))

    def put(self, ids: Any, weights: Any) -> None:
        for row_id, row in zip(np.asarray(ids).tolist(), np.asarray(weights, np.float32), strict=True):
            kept = self._rows.get(row_id) or self._create(row_id)
            kept.value = row.copy()
            self._changed.add(row_id)

    def bag(self, ids: Any, offsets: Any, *, mode: str = "sum", create: bool = True) -> Any:
        array, bounds = self._bags(ids, offsets, mode)
        rows = self.pull(array, create=create).astype(np.float64)
        out = np.zeros((len(bounds), self.config.dim), np.float32)
        for b, (first, end) in enumerate(bounds):
            if end > first:
                out[b] = rows[first:end].sum(0) / (end - first if mode == "mean" else 1)
        return _like(out, ids)

    def push_bag(self, ids: Any, offsets: Any, grads: Any, *, mode: str = "sum") -> None:
        array, bounds = self._bags(ids, offsets, mode)
        g = self._floats("grads", grads, (len(bounds), self.config.dim)).astype(np.float64)
        spread: list[Any] = []
        used: list[int] = []
        for b, (first, end) in enumerate(bounds):
            used += array[first:end].tolist()
            spread += [g[b] / (end - first) if mode == "mean" else g[b] for _ in range(first, end)]
        self._apply(used, np.array(spread).reshape(-1, self.config.dim))

    def set_lr(self, lr: float) -> None:
        if not (np.isfinite(lr) and lr >= 0):
            raise InvalidInput(f"lr is a number of at least 0, not {lr!r}")
        self._lr = lr

    def counts(self, ids: Any) -> NDArray[np.int64]:
        if not self.config.tracks:
            raise InvalidInput("counts: the table keeps none; make it with counts=True")
        array = self._ids(ids)
        flat = [self._count(row_id) for row_id in array.reshape(-1).tolist()]
        return np.array(flat, np.int64).reshape(array.shape)

    def shrink(self, *, min_count: int = 0, unseen_steps: int = 0, unseen_seconds: float = 0.0) -> int:
        if (min_count or unseen_steps or unseen_seconds) and not self.config.tracks:
            raise InvalidInput("shrink: the table keeps no counts; make it with counts=True")

        def unseen(life: Row | Candidate) -> bool:
            steps, seconds = self._steps - life.seen_step, int(self._clock()) - life.seen_time
            late = (unseen_steps > 0 and steps > unseen_steps) or (unseen_seconds > 0 and seconds > unseen_seconds)
            return late or self._is_expired(life)

        dropped = [i for i, row in self._rows.items() if unseen(row) or row.count < min_count]
        for row_id in dropped:
            self._drop(row_id)
        for row_id in [i for i, candidate in self._candidates.items() if unseen(candidate)]:
            del self._candidates[row_id]
        return len(dropped)

    def stats(self) -> Stats:
        size = 4 * (self.config.dim + self.config.state_floats) * len(self._rows)
        return Stats(
            rows=len(self._rows),
            bytes=size,
            candidates=len(self._candidates),
            hits=self._hits,
            creations=self._creations,
            expired=self._expired,
            steps=self._steps,
        )

    def wait(self) -> None:
        pass

    def save(self, path: str | PathLike[str], *, delta: bool = False, finite: bool = False) -> str:
        if delta and not self._at:
            raise InvalidInput("save: a delta needs an earlier save or load")
        identity = uuid.uuid4().hex
        kept = {i: row for i, row in self._rows.items() if not delta or i in self._changed}
        for i in [i for i, row in kept.items() if finite and not np.isfinite(row.value).all()]:
            raise InvalidInput(f"the row of id {i} is no number any more")
        head = {
            "identity": identity,
            "parents": sorted(self._at) if delta else [],
            "steps": self._steps,
            "dim": self.config.dim,
            "optimizer": self.config.optimizer.name,
            "removed": sorted(self._removed) if delta else [],
            "candidates": {i: [candidate.count, candidate.seen_step] for i, candidate in self._candidates.items()},
            "rows": {
                i: [row.value.tolist(), {k: v.tolist() for k, v in row.state.items()}, row.count, row.seen_step]
                for i, row in kept.items()
            },
        }
        Path(path).write_text(json.dumps(head))
        self._follow({identity})
        return identity

    def load(self, path: str | PathLike[str], *, keep: Callable[[Any], Any] | None = None) -> None:
        """A file, or the directory that several shards wrote; `keep` tells which ids are this shard's."""
        heads = self._heads(Path(path))
        if not heads[0]["parents"]:
            self._rows.clear()
        self._candidates.clear()

        def mine(ids: Iterable[Any]) -> list[int]:
            array = np.array([int(i) for i in ids], np.int64)
            return (array if keep is None else array[keep(array)]).tolist()

        now = int(self._clock())
        for head in heads:
            for row_id in head["removed"]:
                self._rows.pop(row_id, None)
            for row_id in mine(head["rows"]):
                value, state, count, seen_step = head["rows"][str(row_id)]
                arrays = {k: np.array(v, np.float32) for k, v in state.items()}
                self._rows[row_id] = Row(np.array(value, np.float32), arrays, count, seen_step, now)
            for row_id in mine(head["candidates"]):
                self._candidates[row_id] = Candidate(*head["candidates"][str(row_id)], now)
            self._steps = head["steps"]
        self._hits = self._creations = self._expired = 0
        self._follow({head["identity"] for head in heads})

    def _heads(self, path: Path) -> list[dict[str, Any]]:
        try:
            files = [path]
            if path.is_dir():
                files = [path / entry["file"] for entry in json.loads((path / "manifest.json").read_text())["files"]]
            heads = [json.loads(file.read_text()) for file in files]
        except OSError as error:
            raise InvalidInput(f"{path}: {error}") from None
        for head in heads:
            if (head["dim"], head["optimizer"]) != (self.config.dim, self.config.optimizer.name):
                raise InvalidInput(f"{path}: of another table (dim {head['dim']}, {head['optimizer']})")
            if not set(head["parents"]) <= self._at:
                raise InvalidInput(f"{path}: a delta on {head['parents']}, but the table is at {sorted(self._at)}")
        return heads

    def _follow(self, identities: set[str]) -> None:
        self._at = identities
        self._changed.clear()
        self._removed.clear()

    def _sight(self, ids: list[int]) -> None:
        """Counts the occurrences of a creating pull; then creates the rows that are due."""
        for row_id, times in Counter(ids).items():
            self._expire(row_id)
            if row_id in self._rows:
                self._hits += times
                self._rows[row_id].count += times
            else:
                if row_id in self._candidates and self._is_expired(self._candidates[row_id]):
                    del self._candidates[row_id]  # only sights and shrinking look at candidates
                candidate = self._candidates.setdefault(row_id, Candidate())
                candidate.count += times
                self._see(candidate)
                if candidate.count < self.config.admit_after:
                    continue
                self._hits += times - 1
                self._create(row_id).count = self._candidates.pop(row_id).count
            self._changed.add(row_id)
            self._see(self._rows[row_id])

    def _apply(self, ids: list[int], grads: NDArray[np.float64]) -> None:
        sums: dict[int, Any] = {}
        for row_id, grad in zip(ids, grads, strict=True):
            sums[row_id] = sums.get(row_id, 0.0) + grad
        for row_id, grad in sums.items():
            self._expire(row_id)
            if row_id not in self._rows:
                if self.config.admit_after > 1:
                    continue
                self._create(row_id)
            row = self._rows[row_id]
            state = {key: value.astype(np.float64) for key, value in row.state.items()}
            value, state = updated(self.config.optimizer, self._lr, row.value.astype(np.float64), state, grad)
            row.value = value.astype(np.float32)
            row.state = {key: np.asarray(v, np.float32) for key, v in state.items()}
            self._changed.add(row_id)
            self._see(row)
        self._steps += 1

    def _create(self, row_id: int) -> Row:
        o, dim = self.config.optimizer, self.config.dim
        row = self._rows[row_id] = Row(first_value(self.config, row_id), first_state(o, dim))
        self._creations += 1
        return row

    def _read(self, row_id: int) -> NDArray[np.float32]:
        row = self._rows.get(row_id)
        if row is not None and not self._is_expired(row):
            return row.value
        if self.config.admit_after > 1:
            return np.zeros(self.config.dim, np.float32)
        return first_value(self.config, row_id)

    def _count(self, row_id: int) -> int:
        life = self._rows.get(row_id) or self._candidates.get(row_id)
        return 0 if life is None or self._is_expired(life) else life.count

    def _see(self, life: Row | Candidate) -> None:
        life.seen_step, life.seen_time = self._steps, int(self._clock())

    def _is_expired(self, life: Row | Candidate) -> bool:
        c = self.config
        steps, seconds = self._steps - life.seen_step, int(self._clock()) - life.seen_time
        return (c.expire_steps > 0 and steps > c.expire_steps) or (c.expire_seconds > 0 and seconds > c.expire_seconds)

    def _expire(self, row_id: int) -> None:
        if row_id in self._rows and self._is_expired(self._rows[row_id]):
            self._drop(row_id)

    def _drop(self, row_id: int) -> None:
        del self._rows[row_id]
        self._changed.discard(row_id)
        self._removed.add(row_id)
        self._expired += 1

    def _ids(self, ids: Any) -> NDArray[np.int64]:
        array = np.asarray(ids)
        if array.dtype != np.int64:
            raise InvalidInput(f"ids are int64, not {array.dtype}")
        return array

    def _floats(self, what: str, values: Any, shape: Iterable[int]) -> NDArray[np.float32]:
        array = np.asarray(values)
        if array.dtype != np.float32:
            raise InvalidInput(f"{what}: float32, not {array.dtype}")
        if array.shape != tuple(shape):
            raise InvalidInput(f"{what}: shape {tuple(shape)}, not {array.shape}")
        return array

    def _bags(self, ids: Any, offsets: Any, mode: str) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
        if mode not in ("sum", "mean"):
            raise InvalidInput(f"mode: sum or mean, not {mode!r}")
        array, starts = self._ids(ids), self._ids(offsets).tolist()
        if starts and (starts != sorted(starts) or starts[0] != 0 or starts[-1] > len(array)):
            raise InvalidInput(f"offsets start at 0, ascend and end within the {len(array)} ids, unlike {starts}")
        if len(array) and not starts:
            raise InvalidInput(f"offsets: none for {len(array)} ids")
        return array, list(zip(starts, [*starts, len(array)][1:], strict=True))


def _like(result: NDArray[np.float32], model: Any) -> Any:
    if type(model).__module__.startswith("torch"):
        import torch

        return torch.from_numpy(result)
    return result


def make_reference(config: TableConfig) -> ReferenceTable:
    """For servers: `--table-factory tests.store.reference:make_reference`."""
    return ReferenceTable(config)
