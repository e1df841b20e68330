from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Placement = NDArray[np.int32]

class Path:
    @property
    def bound(self) -> float: ...
    @property
    def complete(self) -> bool: ...
    @property
    def parts(self) -> int: ...
    @property
    def own(self) -> float: ...
    @property
    def reached(self) -> float: ...
    @property
    def rate(self) -> float: ...
    @property
    def used(self) -> list[float]: ...
    @property
    def placement(self) -> Placement: ...

class Tables:
    def __init__(
        self,
        *,
        layers: int,
        types: int,
        serial: Floats,
        parallel: Floats,
        sync_serial: Floats,
        sync_parallel: Floats,
        server: Floats,
        cut: Floats,
        replicated: Floats,
        sharded: Floats,
        memory: Floats,
        price: Floats,
        limit: Floats,
        server_type: int,
        max_rate: float,
    ) -> None: ...
    def provision(
        self,
        placements: Placement,
        *,
        min_throughput: float,
        max_cost: float,
        fastest: bool,
        micro_batches: float,
        cutoff: float,
    ) -> tuple[Floats, Floats, Floats, Floats, Floats]: ...

class Multipliers:
    def __init__(self, *, type: list[float], rate: float, money: float, server_share: float) -> None: ...

class Graph:
    def __init__(self, tables: Tables) -> None: ...
    @property
    def size(self) -> int: ...
    def floor(self) -> float: ...
    def stages(self, low: float, high: float) -> Floats:
        """A row for each stage that reaches `low`: first layer, last + 1, type, units at `low`, least unit-seconds a
        sample in [low, high], seconds a sample with these units, parameter-server seconds a sample.
        """
    def relax(self, low: float, high: float, *, multipliers: Multipliers, max_stages: int) -> Path: ...
    def narrow(self, low: float, high: float, *, multipliers: Multipliers, cutoff: float) -> Graph: ...
    def branch(
        self, low: float, high: float, *, multipliers: Multipliers, max_stages: int, cutoff: float, max_effort: int
    ) -> Path: ...

def simulate(
    loads: Floats,
    *,
    units: list[float],
    keys: list[int],
    server_units: float,
    micro_batches: int,
    staleness: int,
    warmup: int,
    steps: int,
    jitter: float,
    seed: int,
) -> tuple[float, list[float], list[float], float, float]:
    """A simulated pipeline. `loads` has shape [stages, 2, 5]: forward and backward seconds of a micro-batch, of serial
    and parallel computing, the stage's link, the shared link and the server. Gives the seconds of the measured steps,
    and of these the busy ones of each stage's computing and link, of the shared link and of the server.
    """

Ids = Any
Rows = Any
Words = NDArray[np.uint32]
Int64s = NDArray[np.int64]
Float32s = NDArray[np.float32]

class SparseTable:
    """The store's table. `seconds`: since it was made. Arrays are read and written in place, NumPy or torch."""

    def __init__(
        self,
        *,
        dim: int,
        state_floats: int,
        optimizer: str,
        numbers: list[float],
        seed: int,
        name: str,
        init_scale: float,
        admit_after: int,
        expire_steps: int,
        expire_seconds: int,
        tracks: bool,
        threads: int,
    ) -> None: ...
    def pull(self, ids: Ids, out: Rows, create: bool, seconds: int) -> None: ...
    def push(self, ids: Ids, grads: Rows, seconds: int) -> None: ...
    def push_parts(self, ids: list[Ids], grads: list[Rows]) -> bool: ...
    def pull_distinct(self, ids: Ids, number: Any, rows: Rows, seconds: int) -> tuple[int, int]: ...
    def push_distinct(self, ids: Ids, ticket: int, grads: Rows, seconds: int) -> None: ...
    def bag(self, ids: Ids, offsets: Ids, mean: bool, out: Rows, create: bool, seconds: int) -> None: ...
    def push_bag(self, ids: Ids, offsets: Ids, mean: bool, grads: Rows, seconds: int) -> None: ...
    def prepare(self, ids: Ids, seconds: int) -> None: ...
    def peek(self, ids: Ids, weights: Rows, state: Rows) -> None: ...
    def put(self, ids: Ids, weights: Rows, state: Rows, seconds: int) -> None: ...
    def set_lr(self, lr: float) -> None: ...
    def counts(self, ids: Ids, seconds: int) -> Int64s: ...
    def shrink(self, min_count: int, unseen_steps: int, unseen_seconds: int, seconds: int) -> int: ...
    def stats(self) -> tuple[int, int, int, int, int, int, int]:
        """Rows, bytes, candidates, hits, creations, expired, steps."""
    def begin_save(self, delta: bool, seconds: int) -> tuple[int, int, Int64s, Int64s, Words]:
        """Steps, the table's time, ids removed since the last snapshot, ids of candidates and their lives."""
    def begin_scan(self) -> None:
        """A snapshot for reading alone, which ends with `end_save(False)`."""
    def save_some(self, most: int) -> tuple[Int64s, Float32s, Float32s, Words]:
        """About so many rows of the moment saving began: ids, weights, state, lives. No ids: the end."""
    def end_save(self, succeeded: bool) -> None: ...
    def begin_load(self, clear: bool, saved_steps: int, saved_seconds: int, seconds: int) -> None:
        """The table's time is `saved_seconds` from now on."""
    def insert(self, ids: Int64s, weights: Float32s, state: Float32s, life: Words) -> None: ...
    def insert_candidates(self, ids: Int64s, life: Words) -> None: ...
    def remove(self, ids: Int64s) -> None: ...
    def end_load(self) -> None: ...

class Slots:
    """Numbers for ids whose rows lie elsewhere, from 1 on; slot 0 is for padding. Many threads may call at once."""

    def resolve(self, ids: Ids, slots: Any, number: Any) -> int:
        """Writes the slots of the distinct ids, and each id's number among them (int32); gives how many there are."""
    def __len__(self) -> int: ...
    def ids(self, first: int, end: int) -> Int64s: ...

def init_key(seed: int, name: str) -> int:
    """Key of a table's first values."""

def distinct(ids: Int64s) -> tuple[Int64s, Words]:
    """The distinct ids as they first occur, and for each id the number of its distinct one."""

def distinct_into(ids: Ids, unique: Any, number: Any) -> int:
    """The same into given arrays (int64 and int32), with room for all ids; gives how many are distinct."""

def gather(rows: Float32s, number: Words, out: Float32s) -> None:
    """out[i] = rows[number[i]]."""

def scatter_add(grads: Float32s, number: Words, sums: Float32s) -> None:
    """sums[n] = the sum of grads[i] over number[i] == n, for numbers of `distinct`."""

def repeats(ids: Int64s) -> float:
    """About which share of the ids has occurred before, from samples; 1 of few. The same for the same ids."""

def equal(one: Int64s, other: Int64s) -> bool:
    """Whether they are the same ids in the same order."""

def split(ids: Int64s, shards: int) -> tuple[Int64s, Words, list[int]]:
    """Ids grouped by shard, in their order within each; where each went; where each shard begins, and the end."""

def gather_stretches(stretches: list[Float32s], index: Words, out: Float32s) -> None:
    """out[i] = row number index[i] of the stretches, which follow each other."""

def sum_stretches(
    grads: Float32s, number: Words | None, place: Words | None, distinct: int, stretches: list[Float32s]
) -> None:
    """Row number place[n] (n without places) of the stretches = the sum of grads[i] over number[i] == n.

    Without numbers, of grads[n].
    """

def flat_pull(rows: Float32s, slot: Words, out: Float32s, ahead: int) -> None:
    """The least a pull must do, for comparison: rows of known slots, fetched so many ahead."""

def flat_push(rows: Float32s, state: Float32s, slot: Words, grads: Float32s, lr: float, ahead: int) -> None:
    """The least a push must do, for comparison: row-wise Adagrad on rows of known, distinct slots, so many ahead."""

Bag = tuple[Int64s, Int64s]
"""Ids, and the offsets of each row's."""

class TextFormat:
    """How lines of text become columns. Each field: a kind (see csrc/data/text.hpp), its column, its slot's key."""

    def __init__(
        self,
        *,
        fields: list[tuple[int, int, int]],
        separator: str,
        inner: str,
        quotes: bool,
        log: bool,
        missing: float,
    ) -> None: ...
    def parse(
        self, text: bytes, begin: int
    ) -> tuple[Float32s, Float32s, Int64s, list[Bag], Int64s, list[tuple[int, int, int]]]:
        """Label, dense, ids, bags, where rows start behind `begin`, and of bad rows the start, field and fault."""

class SyntheticLaw:
    """A slot: its ids, the first dense one, its key, the amplitude of weights by octave."""

    def __init__(
        self,
        *,
        key: int,
        dense: list[float],
        slots: list[tuple[int, int, int, list[float]]],
        bags: list[tuple[int, int, int, list[float]]],
        hashed: bool,
        bias: float,
    ) -> None: ...
    def make(self, numbers: Int64s) -> tuple[Float32s, Float32s, Int64s, list[Bag], Float32s]:
        """Label, dense, ids, bags and true probability of the rows of these numbers."""

def hash_strings(text: NDArray[np.uint8], offsets: Int64s, key: int, out: Int64s) -> None:
    """out[i] = the hash of text[offsets[i]:offsets[i+1]] in the slot of this key."""

def hash_integers(values: Int64s, key: int, out: Int64s) -> None:
    """out[i] = the hash of the decimal digits of values[i] in the slot of this key."""

def permutation(size: int, key: int, begin: int, stride: int, count: int) -> Int64s:
    """Images of begin, begin + stride, ... (`count` of them) under a permutation of [0, size)."""

class Inbox:
    """What a thread waits for: messages, put by others, and a bell that native threads ring."""

    def __init__(self) -> None: ...
    def put(self, message: Any) -> None: ...
    def get(self, wait: bool) -> Any:
        """The next message; None if there is none, with `wait` not before the bell rang."""
    def ring(self) -> None: ...

class Errands:
    """See `SparseTable.errands`. Whoever asks keeps the arrays until `pushed` has told of their exchange."""

    def __init__(self, table: SparseTable, inbox: Inbox, lag: int, await_event: int) -> None: ...
    def pull(self, ids: Ids, number: Ids, rows: Rows, seconds: int) -> None: ...
    def push(self, grads: int, event: int, lr: float | None, seconds: int) -> None:
        """Gradients, by address, of the first exchange that had none yet."""
    def pulled(self) -> tuple[int, float, float] | None:
        """The next pull that is done: distinct rows, and when it began and ended (`time.perf_counter`)."""
    def pushed(self) -> tuple[int, float, float] | None: ...
    def close(self) -> None: ...

Memory = NDArray[np.uint8]
BELL_BYTES: int
DESK_BYTES: int

class Circle:
    """Sums over processes of one machine, in memory that all have mapped. Arrays are given by their addresses."""

    def __init__(self, members: list[Memory], me: int, floats: list[int]) -> None:
        """Whoever makes it keeps the members' memory, which is zero at first; `floats` of each array."""
    @staticmethod
    def bytes(floats: list[int]) -> int:
        """Of a member's memory."""
    def put(self, arrays: list[int], most_ms: int) -> bool:
        """Puts down the next arrays, 0 for one that is not there; false if another member left no room for so long."""
    def wait(self, number: int, most_ms: int) -> bool:
        """Whether all have put down what the sum of this number (from 0) needs."""
    def take(self, number: int, sums: list[int]) -> list[bool]:
        """Writes the sums of what `wait` has found; says which arrays no member had."""

class Desk:
    """A client's orders to a clerk; places are offsets in the client's memory. Orders are told by their numbers."""

    def __init__(self, memory: Memory, clerk: Memory) -> None:
        """Its own memory, zero at first, and the clerk's bell."""
    def ask(self, after: int, count: int, ids: int, rows: int, repeats: int, most_ms: int) -> int | None:
        """Orders rows as they are when a step is applied; None if too many orders stayed open for so long."""
    def part(
        self, step: int, part: int, count: int, ids: int, grads: int, lr: float | None, most_ms: int
    ) -> int | None:
        """Orders the gradients of a part to be applied with the others of its step. Its blocks are then free."""
    def wait(self, number: int, most_ms: int) -> bool | None:
        """Whether an order is done; False if it failed, None if it is open."""
    def why(self, number: int) -> str:
        """It failed."""

class Clerk:
    """Serves the desks of a table's clients, in a thread of its own."""

    def __init__(self, table: SparseTable, bell: Memory, parts: int, applied: int, began: float) -> None:
        """Of steps with so many parts, from the one behind `applied` on; `began`: when the table's clock did."""
    def serve(self, memory: Memory, desk: int) -> None:
        """A client's memory, and where in it the desk lies."""
    def close(self, why: str) -> None:
        """Fails what is open."""
    @property
    def repeats(self) -> int: ...
