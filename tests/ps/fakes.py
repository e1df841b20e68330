"""A table in NumPy and Python: slow, plain, with the interface that servers expect of the native one."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from heterps.errors import HeterPSError, InvalidInput
from heterps.store.config import TableConfig
from heterps.store.interface import Stats


class FakeTable:
    """SGD over a dict of rows. First values are a pure function of (seed, id)."""

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.lr = config.optimizer.lr
        self.rows: dict[int, np.ndarray] = {}
        self.seen: dict[int, int] = {}
        self.steps = self.hits = self.creations = 0
        self.lock = threading.Lock()

    def first(self, number: int) -> np.ndarray:
        mixed = np.float32((number * 2654435761 + self.config.seed) % 1024) / np.float32(
            1024
        )  # exact in float32, and so are sums
        return np.full(self.config.dim, mixed * self.config.init_scale, np.float32)

    def pull(self, ids: Any, *, out: Any = None, create: bool = True) -> np.ndarray:
        with self.lock:
            rows = np.empty((len(ids), self.config.dim), np.float32) if out is None else out
            for i, number in enumerate(ids.tolist()):
                row = self.rows.get(number)
                if row is not None:
                    self.hits += 1
                elif create:
                    row = self.rows[number] = self.first(number)
                    self.creations += 1
                if create:
                    self.seen[number] = self.seen.get(number, 0) + 1
                rows[i] = self.first(number) if row is None else row
            return rows

    def push(self, ids: Any, grads: Any) -> None:
        assert grads.dtype == np.float32
        with self.lock:
            for number, grad in zip(ids.tolist(), grads, strict=True):
                row = self.rows.setdefault(number, self.first(number))
                row -= np.float32(self.lr) * grad
            self.steps += 1

    def set_lr(self, lr: float) -> None:
        if lr < 0:
            raise InvalidInput(f"lr is at least 0, not {lr}")
        self.lr = lr

    def counts(self, ids: Any) -> np.ndarray:
        if not self.config.tracks:
            raise InvalidInput("counts: needs counts=True")
        return np.array([self.seen.get(number, 0) for number in ids.tolist()], np.int64)

    def shrink(self, *, min_count: int = 0, unseen_steps: int = 0, unseen_seconds: float = 0.0) -> int:
        gone = [number for number in self.rows if self.seen.get(number, 0) < min_count]
        for number in gone:
            del self.rows[number]
        return len(gone)

    def stats(self) -> Stats:
        return Stats(
            rows=len(self.rows), bytes=len(self.rows) * self.config.dim * 4, candidates=0, hits=self.hits,
            creations=self.creations, expired=0, steps=self.steps,
        )  # fmt: skip

    def save(self, path: str, *, delta: bool = False, finite: bool = False) -> str:
        with self.lock:
            identity = uuid.uuid4().hex
            rows = {str(number): row.tolist() for number, row in self.rows.items()}
        temporary = Path(f"{path}.tmp")
        temporary.write_text(json.dumps({"id": identity, "rows": rows}))
        temporary.replace(path)
        return identity

    def load(self, path: str, *, keep: Callable[[np.ndarray], np.ndarray] | None = None) -> None:
        source = Path(path)
        files = [source]
        if source.is_dir():
            files = [source / entry["file"] for entry in json.loads((source / "manifest.json").read_text())["files"]]
        rows: dict[int, np.ndarray] = {}
        for file in files:
            try:
                saved = json.loads(file.read_text())["rows"]
            except (OSError, ValueError) as error:
                raise HeterPSError(f"snapshot {file}: {error}") from None
            ids = np.array([int(number) for number in saved], np.int64)
            mask = np.ones(len(ids), bool) if keep is None else keep(ids)
            rows |= {int(n): np.array(saved[str(n)], np.float32) for n in ids[mask].tolist()}
        with self.lock:
            self.rows = rows


def make_fake(config: TableConfig) -> FakeTable:
    return FakeTable(config)
