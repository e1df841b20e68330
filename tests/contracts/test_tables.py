"""What every sparse table must keep, in this process or behind a server."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps.errors import InvalidInput
from heterps.ps import Client
from heterps.store import SparseTable
from heterps.store.config import STATE_FLOATS, Optimizer, TableConfig
from tests.ps.running import running_server
from tests.ps.tiny import MAKE, tiny_blocks
from tests.store.reference import ReferenceTable, first_value

NAMES = sorted(STATE_FLOATS)
LOWEST, HIGHEST = -(2**63), 2**63 - 1
CLOSE = {"rtol": 1e-5, "atol": 2e-6}
"""Tables compute in float32, the reference in float64."""


class Maker:
    """Makes tables of one implementation. A maker may give a table a name of its own: see the table's `config`."""

    local = True

    def __call__(self, config: TableConfig, *, clock: Callable[[], float] | None = None) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Reference(Maker):
    def __call__(self, config: TableConfig, *, clock: Callable[[], float] | None = None) -> Any:
        return ReferenceTable(config) if clock is None else ReferenceTable(config, clock=clock)


class Local(Maker):
    def __init__(self, threads: int) -> None:
        self.threads = threads

    def __call__(self, config: TableConfig, *, clock: Callable[[], float] | None = None) -> Any:
        given = {} if clock is None else {"clock": clock}
        return SparseTable.from_config(config, threads=self.threads, **given)


class Remote(Maker):
    """Tables of real server processes, one a shard. Each table gets a name of its own on them."""

    local = False

    def __init__(
        self,
        shards: int,
        directory: Path,
        factory: str | None = None,
        *,
        ipc: bool = False,
        shared: bool = False,
    ) -> None:
        """`shared`: every array crosses in shared memory, else none does."""
        self.numbers, self.stack = itertools.count(), contextlib.ExitStack()
        if shared:
            factory = MAKE
            self.stack.enter_context(tiny_blocks())
        addresses, keys = self.stack.enter_context(running_server(directory, make=factory, shards=shards, ipc=ipc))
        self.client = self.stack.enter_context(Client(addresses, keys, shared=shared))

    def __call__(self, config: TableConfig, *, clock: Callable[[], float] | None = None) -> Any:
        assert clock is None, "a server has its own clock"
        return self.client.table(replace(config, name=f"{config.name}-{next(self.numbers)}"))

    def close(self) -> None:
        self.stack.close()


MAKERS: dict[str, Callable[[Path], Maker]] = {
    "reference": lambda directory: Reference(),
    "local": lambda directory: Local(1),
    "local, 2 threads": lambda directory: Local(2),
    "remote": lambda directory: Remote(1, directory),
    "remote, ipc": lambda directory: Remote(1, directory, ipc=True),
    "remote, 2 shards": lambda directory: Remote(2, directory),
    "remote, shared memory, 2 shards": lambda directory: Remote(2, directory, shared=True),
    # Tells errors of the way to the servers from errors of the native core.
    "remote reference, 2 shards": lambda directory: Remote(2, directory, "tests.store.reference:make_reference"),
}


@pytest.fixture(scope="module", params=MAKERS)
def make(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    maker = MAKERS[request.param](tmp_path_factory.mktemp("servers"))
    yield maker
    maker.close()


def table_config(name: str = "sgd", *, dim: int = 4, lr: float = 0.1, **options: Any) -> TableConfig:
    own = {field.name for field in fields(TableConfig)} & set(options)
    optimizer = Optimizer(name=name, lr=lr, **{k: v for k, v in options.items() if k not in own})
    return TableConfig(dim=dim, optimizer=optimizer, seed=7, **{k: options[k] for k in own})


def int64(*ids: int) -> Any:
    return np.array(ids, np.int64)


def grads_of(shape: tuple[int, ...], seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def first_values(config: TableConfig, ids: Any) -> Any:
    flat = [first_value(config, row_id) for row_id in np.asarray(ids).reshape(-1).tolist()]
    return np.array(flat, np.float32).reshape(*np.shape(ids), config.dim)


# Shapes, kinds of arrays


@pytest.mark.parametrize("shape", [(), (0,), (1,), (5,), (3, 4), (0, 3), (2, 3, 4)])
@pytest.mark.parametrize("dim", [1, 5, 16])
def test_a_pull_has_the_shape_of_the_ids_and_one_more_axis(make: Maker, shape: tuple[int, ...], dim: int) -> None:
    table = make(table_config(dim=dim))
    ids = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    rows = table.pull(ids)
    assert rows.shape == (*shape, dim)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, first_values(table.config, ids))
    table.push(ids, np.ones((*shape, dim), np.float32))
    np.testing.assert_allclose(table.pull(ids), rows - np.float32(0.1), **CLOSE)


def test_arrays_need_not_be_contiguous(make: Maker) -> None:
    table = make(table_config(dim=3))
    wide = np.arange(24, dtype=np.int64).reshape(4, 6)
    for ids in (wide[:, ::2], wide.T, wide[::-1]):
        rows = table.pull(ids)
        np.testing.assert_array_equal(rows, table.pull(np.ascontiguousarray(ids)))
        grads = grads_of((3, *ids.shape[::-1])).T
        table.push(ids, grads)
        np.testing.assert_allclose(table.pull(ids), rows - 0.1 * grads, **CLOSE)


def test_tensors_go_in_and_come_out(make: Maker) -> None:
    table = make(table_config(dim=3))
    ids = torch.tensor([[5, -7, 5], [0, 1, 2]])
    rows = table.pull(ids)
    assert isinstance(rows, torch.Tensor)
    assert (rows.dtype, rows.shape) == (torch.float32, (2, 3, 3))
    np.testing.assert_array_equal(rows.numpy(), first_values(table.config, ids.numpy()))
    table.push(ids, torch.ones(2, 3, 3))
    change = (rows - table.pull(ids))[:, :, 0]
    torch.testing.assert_close(change, torch.tensor([[0.2, 0.1, 0.2], [0.1, 0.1, 0.1]]), rtol=0, atol=1e-6)
    pooled = table.bag(ids.reshape(-1), torch.tensor([0, 2]))
    assert isinstance(pooled, torch.Tensor)
    table.push_bag(ids.reshape(-1), torch.tensor([0, 2]), torch.ones(2, 3))
    columns = table.pull(ids.T.contiguous().T)
    torch.testing.assert_close(columns, table.pull(ids), rtol=0, atol=0)


def test_a_pull_writes_into_a_given_buffer(make: Maker) -> None:
    table = make(table_config(dim=3))
    ids = int64(4, 9, 4)
    out = np.full((3, 3), np.nan, np.float32)
    assert np.shares_memory(table.pull(ids, out=out), out)
    np.testing.assert_array_equal(out, first_values(table.config, ids))
    tensor = torch.full((3, 3), torch.nan)
    assert table.pull(torch.from_numpy(ids), out=tensor).data_ptr() == tensor.data_ptr()
    np.testing.assert_array_equal(tensor.numpy(), out)
    out[:] = 0
    table.pull(ids, out=out, create=False)
    np.testing.assert_array_equal(out, tensor.numpy())


def test_what_a_pull_gave_does_not_follow_later_pushes(make: Maker) -> None:
    table = make(table_config())
    ids = int64(1, 2)
    rows = table.pull(ids)
    before = rows.copy()
    table.push(ids, np.ones((2, 4), np.float32))
    table.wait()
    np.testing.assert_array_equal(rows, before)


def test_arguments_are_left_as_they_were(make: Maker) -> None:
    table = make(table_config("rowwise-adagrad", weight_decay=0.1, clip_value=0.5, clip_norm=0.5))
    ids, grads = int64(3, 1, 3), grads_of((3, 4))
    ids_before, grads_before = ids.copy(), grads.copy()
    table.pull(ids)
    table.push(ids, grads)
    table.push_bag(ids, int64(0, 1), grads[:2], mode="mean")
    table.wait()
    np.testing.assert_array_equal(ids, ids_before)
    np.testing.assert_array_equal(grads, grads_before)


# First values


@pytest.mark.parametrize("dim", [1, 2, 7, 16, 33, 64])
def test_first_values_are_a_function_of_seed_name_and_id(make: Maker, dim: int) -> None:
    config = replace(table_config(dim=dim), seed=2**64 - 3, name="Tabelle ü", init_scale=0.3)
    table = make(config)
    ids = int64(0, 1, -1, LOWEST, HIGHEST, 123_456_789_012)
    expected = first_values(table.config, ids)
    np.testing.assert_array_equal(table.pull(ids, create=False), expected)
    np.testing.assert_array_equal(table.pull(ids), expected)
    assert len(np.unique(expected)) == expected.size
    other = make(replace(config, seed=1))
    assert not np.isclose(other.pull(ids), expected).any()


def test_first_values_are_uniform() -> None:
    values = first_values(table_config(dim=16), np.arange(2000))
    assert (np.abs(values) <= 0.01).all()
    assert abs(values.mean()) < 1e-4
    assert abs(values.std() - 0.01 / np.sqrt(3)) < 1e-4


def test_extreme_ids_are_ids_like_others(make: Maker) -> None:
    table = make(table_config())
    ids = int64(LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST)
    grads = np.arange(7, dtype=np.float32)[:, None] * np.ones(4, np.float32)
    rows = table.pull(ids)
    table.push(ids, grads)
    np.testing.assert_allclose(table.pull(ids), rows - 0.1 * grads, **CLOSE)
    assert table.stats().rows == 7


def test_reading_without_creating_leaves_no_trace(make: Maker) -> None:
    table = make(table_config(counts=True))
    table.pull(int64(1))
    before = table.stats()
    ids = int64(1, 2, 3)
    table.pull(ids, create=False)
    table.bag(ids, int64(0), create=False)
    assert replace(table.stats(), bytes=before.bytes) == before
    assert table.counts(ids).tolist() == [1, 0, 0]


# Pushes


def test_gradients_of_duplicates_are_summed_before_the_update(make: Maker) -> None:
    table = make(table_config("adagrad", dim=2))
    ids, grads = int64(8, 3, 8, 8), np.array([[1, 2], [5, 5], [2, 2], [-6, 0]], np.float32)
    rows = table.pull(ids)
    table.push(ids, grads)
    # 8: (-3, 4), 3: (5, 5); adagrad's first step is lr · sign of the sum.
    expected = rows - 0.1 * np.array([[-1, 1], [1, 1], [-1, 1], [-1, 1]])
    np.testing.assert_allclose(table.pull(ids), expected, **CLOSE)


def test_a_push_creates_missing_rows(make: Maker) -> None:
    table = make(table_config(counts=True))
    ids = int64(10, 20)
    table.push(ids, np.ones((2, 4), np.float32))
    np.testing.assert_allclose(table.pull(ids, create=False), first_values(table.config, ids) - 0.1, **CLOSE)
    assert table.stats().rows == 2
    assert table.counts(ids).tolist() == [0, 0]


def test_rowwise_adagrad_by_hand(make: Maker) -> None:
    table = make(table_config("rowwise-adagrad", dim=2, lr=0.5))
    ids = int64(1)
    first = table.pull(ids)
    table.push(ids, np.array([[3, 4]], np.float32))  # h = 12.5
    table.push(ids, np.array([[5, 5]], np.float32))  # h = 37.5
    step = 0.5 * np.array([3, 4]) / np.sqrt(12.5) + 0.5 * np.array([5, 5]) / np.sqrt(37.5)
    np.testing.assert_allclose(table.pull(ids), first - step, **CLOSE)


def test_ftrl_by_hand(make: Maker) -> None:
    table = make(table_config("ftrl", dim=2, lr=0.5, l1=1.0, l2=2.0, beta=1.0, init_scale=0.0))
    ids = int64(1)
    table.push(ids, np.array([[3, 0.5]], np.float32))
    # From w = 0: z = g, n = g²; w = -(3 - 1) / ((1 + 3)/0.5 + 2) = -0.2; |z| = 0.5 ≤ l1 stays 0.
    np.testing.assert_allclose(table.pull(ids), [[-0.2, 0.0]], **CLOSE)
    table.push(ids, np.array([[4, 0]], np.float32))
    # n = 25, σ = (5 - 3)/0.5 = 4, z = 3 + 4 + 4·0.2 = 7.8; w = -6.8 / ((1 + 5)/0.5 + 2) = -6.8/14.
    np.testing.assert_allclose(table.pull(ids), [[-6.8 / 14, 0.0]], **CLOSE)


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
@pytest.mark.parametrize("dim", [3, 16])
def test_sgd_and_adagrad_equal_torch(make: Maker, name: str, dim: int) -> None:
    table = make(table_config(name, dim=dim, lr=0.05))
    rng = np.random.default_rng(3)
    ids = np.arange(50, dtype=np.int64)
    embedding = torch.nn.Embedding(50, dim, sparse=True)
    with torch.no_grad():
        embedding.weight[:] = table.pull(torch.from_numpy(ids))
    optimizer = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad}[name](embedding.parameters(), lr=0.05)
    for step in range(20):
        batch = torch.from_numpy(rng.zipf(1.5, (8, 3)) % 50)
        grads = torch.from_numpy(grads_of((8, 3, dim), seed=step))
        torch.testing.assert_close(table.pull(batch), embedding(batch).detach(), rtol=1e-4, atol=1e-5)
        optimizer.zero_grad()
        embedding(batch).backward(grads)
        optimizer.step()
        table.push(batch, grads)
    torch.testing.assert_close(table.pull(torch.from_numpy(ids)), embedding.weight.detach(), rtol=1e-4, atol=1e-5)


def test_adam_equals_torch_where_every_row_has_a_gradient(make: Maker) -> None:
    table = make(table_config("adam", dim=5, lr=0.05, weight_decay=0.1))
    ids = torch.arange(6)
    weight = torch.nn.Parameter(table.pull(ids).clone())
    optimizer = torch.optim.Adam([weight], lr=0.05, weight_decay=0.1)
    for step in range(30):
        weight.grad = torch.from_numpy(grads_of((6, 5), seed=step))
        optimizer.step()
        table.push(ids, weight.grad)
    torch.testing.assert_close(table.pull(ids), weight.detach(), rtol=1e-4, atol=2e-5)


def test_adam_counts_the_updates_of_each_row(make: Maker) -> None:
    table = make(table_config("adam", dim=1, lr=0.5))
    rows = table.pull(int64(1, 2))
    for _ in range(3):
        table.push(int64(1), np.ones((1, 1), np.float32))
    table.push(int64(2), np.ones((1, 1), np.float32))
    # With a constant gradient each update is lr, whatever else was pushed before the row's first.
    np.testing.assert_allclose(table.pull(int64(1, 2)), rows - [[1.5], [0.5]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dim", [1, 4, 16, 33])
@pytest.mark.parametrize("size", [1e10, 1e20, 3e38])
def test_a_row_is_clipped_however_long_it_is(make: Maker, dim: int, size: float) -> None:
    """The square of a large float32 is none."""
    table = make(table_config(dim=dim, lr=1.0, clip_norm=0.5, init_scale=0.0))
    table.push(int64(1), np.full((1, dim), size, np.float32))
    np.testing.assert_allclose(table.pull(int64(1)), np.full((1, dim), -0.5 / dim**0.5), rtol=1e-6)


def test_the_learning_rate_can_follow_a_schedule(make: Maker) -> None:
    table = make(table_config(dim=1, lr=0.1))
    ids, ones = int64(1), np.ones((1, 1), np.float32)
    first = table.pull(ids)
    for lr in (0.5, 0.0, 0.25):
        table.set_lr(lr)
        table.push(ids, ones)
    np.testing.assert_allclose(table.pull(ids), first - 0.75, **CLOSE)
    with pytest.raises(InvalidInput, match="-1"):
        table.set_lr(-1.0)


# Bags


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_bags_equal_torch(make: Maker, mode: str) -> None:
    table = make(table_config(dim=3, lr=1.0))
    ids, offsets = torch.tensor([4, 1, 4, 2, 2, 2, 0]), torch.tensor([0, 3, 3, 6, 7])
    bag = torch.nn.EmbeddingBag(5, 3, mode=mode, sparse=True)
    with torch.no_grad():
        bag.weight[:] = table.pull(torch.arange(5))
    pooled = bag(ids, offsets)
    torch.testing.assert_close(table.bag(ids, offsets, mode=mode), pooled.detach())
    grads = torch.from_numpy(grads_of((5, 3)))
    pooled.backward(grads)
    torch.optim.SGD(bag.parameters(), lr=1.0).step()
    table.push_bag(ids, offsets, grads, mode=mode)
    torch.testing.assert_close(table.pull(torch.arange(5)), bag.weight.detach(), rtol=1e-5, atol=1e-6)


def test_a_bag_without_ids_is_zero(make: Maker) -> None:
    table = make(table_config(dim=3))
    for mode in ("sum", "mean"):
        assert not table.bag(int64(), int64(0, 0), mode=mode).any()
        assert table.bag(int64(), int64(), mode=mode).shape == (0, 3)
    table.push_bag(int64(), int64(0, 0), np.ones((2, 3), np.float32))
    assert table.stats().rows == 0


def test_bags_count_sights_like_pulls(make: Maker) -> None:
    table = make(table_config(dim=3, admit_after=3))
    ids = int64(1, 1, 2, 1)
    pooled = table.bag(ids, int64(0, 2, 3))
    one = first_value(table.config, 1)
    np.testing.assert_allclose(pooled, [2 * one, np.zeros(3), one], **CLOSE)
    assert table.counts(int64(1, 2)).tolist() == [3, 1]


# The same as the reference, whatever is done

POOL = (LOWEST, -5, -1, 0, 1, 2, 3, 1000, 2**40, HIGHEST)
EIGHTHS = st.integers(-16, 16).map(lambda n: n / 8)
"""Gradients whose sums are exact in float32: no order of summing gives a sign of its own to what is really zero."""


@st.composite
def configs(draw: st.DrawFn, name: str) -> TableConfig:
    life = draw(st.sampled_from([{}, {}, {"counts": True}, {"admit_after": 2}, {"expire_steps": 2},
                                 {"admit_after": 3, "expire_steps": 3}]))  # fmt: skip
    options: dict[str, Any] = {"eps": 1e-3} if name not in ("sgd", "momentum", "ftrl") and draw(st.booleans()) else {}
    for key, values in {
        "initial_accumulator": (0.0, 0.5),
        "weight_decay": (0.0, 0.25),
        "clip_value": (float("inf"), 1.0),
        "clip_norm": (float("inf"), 0.75),
        "momentum": (0.9, 0.0),
        "l1": (0.0, 0.5),
        "l2": (0.0, 0.5),
        "init_scale": (0.01, 1.0),
    }.items():
        options[key] = draw(st.sampled_from(values))
    return table_config(name, dim=draw(st.sampled_from([1, 3, 8, 16, 17])), **options, **life)


@st.composite
def operations(draw: st.DrawFn) -> tuple[Any, ...]:
    verb = draw(st.sampled_from(["pull", "pull", "push", "push", "push", "bag", "push_bag", "set_lr", "shrink"]))
    if verb == "set_lr":
        return verb, draw(st.sampled_from([0.01, 0.1, 0.5]))
    if verb == "shrink":
        return verb, draw(st.integers(0, 3)), draw(st.integers(0, 3))
    mode = draw(st.sampled_from(["sum", "mean"]))
    # Bags of 0, 1, 2 or 4 ids: a mean's gradient stays exact.
    sizes = draw(st.lists(st.sampled_from([0, 1, 2, 4]), min_size=1, max_size=4))
    ids = draw(st.lists(st.sampled_from(POOL), min_size=sum(sizes), max_size=sum(sizes)))
    seed = draw(st.integers(0, 2**20))
    return verb, ids, np.cumsum([0, *sizes[:-1]]).tolist(), mode, seed


def perform(table: Any, operation: tuple[Any, ...], *, tracks: bool) -> Any:
    verb, *rest = operation
    if verb == "set_lr":
        return table.set_lr(rest[0])
    if verb == "shrink":
        return table.shrink(min_count=rest[0], unseen_steps=rest[1]) if tracks else table.shrink()
    ids, offsets, mode, seed = int64(*rest[0]), int64(*rest[1]), rest[2], rest[3]
    count = len(offsets) if verb == "push_bag" else len(ids)
    grads = np.random.default_rng(seed).integers(-16, 17, (count, table.config.dim)).astype(np.float32) / 8
    if verb == "pull":
        return table.pull(ids)
    if verb == "push":
        return table.push(ids, grads)
    if verb == "bag":
        return table.bag(ids, offsets, mode=mode)
    return table.push_bag(ids, offsets, grads, mode=mode)


def assert_same(table: Any, reference: ReferenceTable, results: tuple[Any, Any]) -> None:
    mine, theirs = results
    if isinstance(theirs, np.ndarray):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    else:
        assert mine == theirs
    ids = int64(*POOL)
    rows, expected = table.pull(ids, create=False), reference.pull(ids, create=False)
    np.testing.assert_allclose(rows, expected, rtol=1e-4, atol=1e-5)
    if table.config.tracks:
        assert table.counts(ids).tolist() == reference.counts(ids).tolist()
    stats, wanted = table.stats(), reference.stats()
    for key in ("rows", "candidates", "creations", "expired", "steps"):
        assert getattr(stats, key) == getattr(wanted, key), key


@pytest.mark.parametrize("name", NAMES)
def test_any_sequence_gives_what_the_reference_gives(make: Maker, name: str) -> None:
    @settings(
        max_examples=40 if make.local else 12,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(configs(name), st.lists(operations(), min_size=1, max_size=20))
    def check(config: TableConfig, sequence: list[tuple[Any, ...]]) -> None:
        table = make(config)
        reference = ReferenceTable(table.config)
        for operation in sequence:
            results = [perform(each, operation, tracks=config.tracks) for each in (table, reference)]
            assert_same(table, reference, (results[0], results[1]))

    check()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dim", [16, 20, 128])
def test_large_batches_give_what_the_reference_gives(make: Maker, name: str, dim: int) -> None:
    table = make(table_config(name, dim=dim, weight_decay=0.01, clip_norm=5.0, eps=1e-3))
    reference = ReferenceTable(table.config)
    rng = np.random.default_rng(11)
    for step in range(3):
        ids = (rng.zipf(1.2, 700) % 2**40).astype(np.int64) * 7919
        grads = grads_of((700, dim), seed=step)
        np.testing.assert_allclose(table.pull(ids), reference.pull(ids), rtol=1e-4, atol=2e-5)
        table.push(ids, grads)
        reference.push(ids, grads)
    np.testing.assert_allclose(table.pull(ids), reference.pull(ids), rtol=1e-4, atol=2e-5)


# Life of rows


def test_a_row_is_admitted_when_seen_often_enough(make: Maker) -> None:
    table = make(table_config(admit_after=3))
    ids, ones = int64(1, 2), np.ones((2, 4), np.float32)
    assert not table.pull(int64(1, 2, 2)).any()  # 1 seen once, 2 twice
    table.push(ids, ones)  # dropped: no row yet
    assert not table.pull(ids, create=False).any()  # and no sight
    stats = table.stats()
    assert (stats.rows, stats.candidates, stats.creations, stats.hits) == (0, 2, 0, 0)
    rows = table.pull(ids)  # the third sight of 2
    np.testing.assert_array_equal(rows, [np.zeros(4), first_value(table.config, 2)])
    assert table.counts(ids).tolist() == [2, 3]
    table.push(ids, ones)
    np.testing.assert_allclose(table.pull(ids, create=False), [np.zeros(4), rows[1] - 0.1], **CLOSE)
    np.testing.assert_array_equal(table.pull(int64(9, 9, 9))[2], first_value(table.config, 9))  # all at once
    stats = table.stats()
    assert (stats.rows, stats.candidates) == (2, 1)


def test_counts_are_occurrences_in_pulls(make: Maker) -> None:
    table = make(table_config(counts=True))
    table.pull(int64(5, 5, 6, 5))
    table.pull(int64(6))
    table.push(int64(6, 7), np.ones((2, 4), np.float32))
    counts = table.counts(int64(5, 6, 7, 8).reshape(2, 2))
    assert counts.dtype == np.int64
    assert counts.tolist() == [[3, 2], [0, 0]]


def test_a_row_unseen_for_too_many_steps_is_absent(make: Maker) -> None:
    table = make(table_config(expire_steps=2))
    one, other, ones = int64(1), int64(2), np.ones((1, 4), np.float32)
    table.pull(one)
    table.push(one, ones)  # seen at step 0
    for _ in range(2):
        table.push(other, ones)
    changed = table.pull(one, create=False)  # step 3: 3 steps unseen
    np.testing.assert_array_equal(changed[0], first_value(table.config, 1))
    assert table.counts(one).tolist() == [0]
    table.pull(one)  # anew
    assert table.counts(one).tolist() == [1]
    table.push(one, ones)
    table.push(other, ones)
    table.push(other, ones)
    # At step 6, seen at step 3 by pull and push alike: absent again. Pushing to it starts from the first value.
    table.push(one, ones)
    np.testing.assert_allclose(table.pull(one)[0], first_value(table.config, 1) - 0.1, **CLOSE)
    assert table.stats().expired == 2


def test_a_row_seen_in_time_stays(make: Maker) -> None:
    table = make(table_config(expire_steps=2))
    one, other, ones = int64(1), int64(2), np.ones((1, 4), np.float32)
    table.push(one, ones)
    for _ in range(4):
        table.push(other, ones)
        table.pull(one)
    np.testing.assert_allclose(table.pull(one)[0], first_value(table.config, 1) - 0.1, **CLOSE)
    assert table.stats().expired == 0


def test_shrink_drops_what_is_rare_or_unseen(make: Maker) -> None:
    table = make(table_config(counts=True))
    ones = np.ones((1, 4), np.float32)
    table.pull(int64(1, 1, 2, 3))
    for _ in range(3):
        table.push(int64(3), ones)
    assert table.shrink() == 0
    assert table.shrink(unseen_steps=3) == 0
    assert table.shrink(min_count=2) == 2  # 2 and 3, each seen once
    assert table.stats().rows == 1
    np.testing.assert_array_equal(table.pull(int64(3), create=False)[0], first_value(table.config, 3))
    table.push(int64(3), ones)
    assert table.shrink(unseen_steps=3) == 1  # 1, unseen for 4 steps
    assert table.counts(int64(1)).tolist() == [0]
    stats = table.stats()
    assert (stats.rows, stats.expired, stats.creations) == (1, 3, 4)
    table.pull(int64(1))
    np.testing.assert_allclose(table.pull(int64(3))[0], first_value(table.config, 3) - 0.1, **CLOSE)


def test_shrink_drops_expired_rows(make: Maker) -> None:
    table = make(table_config(expire_steps=1))
    table.pull(int64(1, 2))
    for _ in range(2):
        table.push(int64(2), np.ones((1, 4), np.float32))
    assert table.shrink() == 1
    assert table.stats().rows == 1


def test_a_table_without_counts_says_so(make: Maker) -> None:
    table = make(table_config())
    with pytest.raises(InvalidInput, match="counts"):
        table.counts(int64(1))
    with pytest.raises(InvalidInput, match="counts"):
        table.shrink(min_count=2)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize("admit_after", [1, 2])
def test_a_row_unseen_for_too_long_is_absent(make: Maker, admit_after: int) -> None:
    if not make.local:
        return  # a server's clock cannot be set; its tables are the local ones
    clock = Clock()
    table = make(table_config(expire_seconds=10, admit_after=admit_after), clock=clock)
    ids, ones = int64(1), np.ones((1, 4), np.float32)
    table.pull(int64(1, 1))
    table.push(ids, ones)
    clock.now_s += 10
    changed = table.pull(ids)  # at the limit: still there, and seen
    np.testing.assert_allclose(changed[0], first_value(table.config, 1) - 0.1, **CLOSE)
    clock.now_s += 11
    gone = first_value(table.config, 1) if admit_after == 1 else np.zeros(4)
    np.testing.assert_array_equal(table.pull(ids, create=False)[0], gone)
    assert table.counts(ids).tolist() == [0]
    np.testing.assert_array_equal(table.pull(ids)[0], gone)
    assert table.counts(ids).tolist() == [1]
    stats = table.stats()
    assert (stats.expired, stats.rows, stats.candidates) == ((1, 1, 0) if admit_after == 1 else (1, 0, 1))


def test_shrink_by_time(make: Maker) -> None:
    if not make.local:
        return  # as above
    clock = Clock()
    table = make(table_config(counts=True), clock=clock)
    table.pull(int64(1))
    clock.now_s += 5
    table.pull(int64(2))
    clock.now_s += 5
    assert table.shrink(unseen_seconds=10) == 0
    assert table.shrink(unseen_seconds=7) == 1
    assert table.counts(int64(1, 2)).tolist() == [0, 1]


def test_stats_count_what_was_done(make: Maker) -> None:
    table = make(table_config("rowwise-adagrad", dim=16))
    ids = np.arange(1000, dtype=np.int64)
    table.pull(ids)
    table.pull(int64(1, 1, 5, 2000))
    table.push(ids[:10], np.ones((10, 16), np.float32))
    stats = table.stats()
    assert (stats.rows, stats.creations, stats.hits, stats.steps) == (1001, 1001, 3, 1)
    assert (stats.candidates, stats.expired) == (0, 0)
    assert stats.bytes >= 1001 * 68


# What is refused


@pytest.mark.parametrize("dtype", ["int32", "uint64", "float32", "float64", "bool", "int16"])
def test_ids_of_another_type_are_refused(make: Maker, dtype: str) -> None:
    table = make(table_config())
    ids, grads = np.ones(2, dtype), np.ones((2, 4), np.float32)
    for call in (
        lambda: table.pull(ids),
        lambda: table.pull(ids, create=False),
        lambda: table.push(ids, grads),
        lambda: table.bag(ids, int64(0)),
        lambda: table.push_bag(ids, int64(0), grads[:1]),
        lambda: table.bag(int64(1, 2), ids),
    ):
        with pytest.raises(InvalidInput, match=dtype):
            call()
    if dtype != "uint64":
        with pytest.raises(InvalidInput, match=dtype):
            table.pull(torch.from_numpy(ids))
    assert table.stats().rows == 0


@pytest.mark.parametrize(
    ("grads", "says"),
    [
        (np.ones((2, 3), np.float32), r"\(2, 3\)"),
        (np.ones((3, 4), np.float32), r"\(3, 4\)"),
        (np.ones(8, np.float32), r"\(8,\)"),
        (np.ones((1, 2, 4), np.float32), r"\(1, 2, 4\)"),
        (np.ones((2, 4), np.float64), "float64"),
        (np.ones((2, 4), np.float16), "float16"),
        (np.ones((2, 4), np.int64), "int64"),
    ],
    ids=["dim", "count", "flat", "axes", "float64", "float16", "int64"],
)
def test_gradients_that_do_not_fit_are_refused(make: Maker, grads: Any, says: str) -> None:
    table = make(table_config())
    rows = table.pull(int64(1, 2))
    with pytest.raises(InvalidInput, match=says):
        table.push(int64(1, 2), grads)
    with pytest.raises(InvalidInput, match=says):
        table.push_bag(int64(1, 2), int64(0, 1), grads)
    with pytest.raises(InvalidInput, match=says):
        table.pull(int64(1, 2), out=grads)
    np.testing.assert_array_equal(table.pull(int64(1, 2)), rows)
    assert table.stats().steps == 0


@pytest.mark.parametrize("offsets", [(1, 0), (0, 3), (-1, 0), (0, 2, 1), (0, HIGHEST), (LOWEST,), (1,), ()])
def test_offsets_that_do_not_fit_are_refused(make: Maker, offsets: tuple[int, ...]) -> None:
    table = make(table_config())
    with pytest.raises(InvalidInput, match="offsets"):
        table.bag(int64(1, 2), int64(*offsets))
    with pytest.raises(InvalidInput, match="offsets"):
        table.push_bag(int64(1, 2), int64(*offsets), np.ones((len(offsets), 4), np.float32))
    assert table.stats().rows == 0


def test_an_unknown_mode_is_refused(make: Maker) -> None:
    table = make(table_config())
    with pytest.raises(InvalidInput, match="max"):
        table.bag(int64(1), int64(0), mode="max")
    with pytest.raises(InvalidInput, match="max"):
        table.push_bag(int64(1), int64(0), np.ones((1, 4), np.float32), mode="max")


# Snapshots


def push_some(table: Any, seed: int) -> None:
    ids = np.random.default_rng(seed).integers(0, 60, 40)
    table.pull(ids)
    table.push(ids, grads_of((40, table.config.dim), seed=seed))


@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_brings_back_rows_and_state(make: Maker, name: str, tmp_path: Path) -> None:
    config = table_config(name, counts=True)
    table = make(config)
    reference = ReferenceTable(table.config)
    for each in (table, reference):
        push_some(each, 1)
    table.save(tmp_path / "full")
    push_some(table, 2)
    ids = np.arange(-1, 61, dtype=np.int64)
    table.load(tmp_path / "full")
    np.testing.assert_allclose(table.pull(ids, create=False), reference.pull(ids, create=False), **CLOSE)
    assert table.counts(ids).tolist() == reference.counts(ids).tolist()
    stats = table.stats()
    assert (stats.rows, stats.hits, stats.creations) == (reference.stats().rows, 0, 0)
    for each in (table, reference):
        push_some(each, 3)  # goes on as if nothing had happened: the state is back, too
    np.testing.assert_allclose(table.pull(ids, create=False), reference.pull(ids, create=False), rtol=1e-4, atol=1e-5)


def test_deltas_bring_back_every_moment(make: Maker, tmp_path: Path) -> None:
    table = make(table_config("adagrad", counts=True))
    ids = np.arange(-1, 61, dtype=np.int64)

    def shrink() -> None:
        assert table.shrink(min_count=2) > 0

    # Each change alone, so that none is saved only because another touched the same rows.
    changes: list[Callable[[], Any]] = [
        lambda: push_some(table, 0),
        lambda: table.push(ids[1:6], grads_of((5, 4))),
        lambda: table.pull(ids[3:9]),
        lambda: table.bag(ids[5:12], int64(0, 3)),
        lambda: table.push_bag(ids[10:14], int64(0, 1), grads_of((2, 4))),
        shrink,
        lambda: table.pull(ids[-3:]),
        lambda: None,
    ]
    moments = []
    for moment, change in enumerate(changes):
        change()
        table.save(tmp_path / str(moment), delta=moment > 0)
        moments.append((table.pull(ids, create=False), table.counts(ids).tolist(), table.stats().rows))
    push_some(table, 9)
    for moment, (rows, counts, size) in enumerate(moments):
        table.load(tmp_path / str(moment))
        np.testing.assert_array_equal(table.pull(ids, create=False), rows, err_msg=f"moment {moment}")
        assert table.counts(ids).tolist() == counts, f"moment {moment}"
        assert table.stats().rows == size, f"moment {moment}"


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad"])
def test_rows_that_are_put(make: Maker, optimizer: str, tmp_path: Path) -> None:
    """To the last bit, over what was there and where nothing was; updates go on from there."""
    config = replace(table_config(dim=3), optimizer=Optimizer(name=optimizer, lr=0.5))
    table, rng = make(config), np.random.default_rng(0)
    ids = rng.permutation(np.arange(-2000, 2000))
    rows = rng.standard_normal((len(ids), 3)).astype(np.float32)
    table.push(ids[:10], np.ones((10, 3), np.float32))
    table.save(tmp_path / "before")
    table.put(ids, rows)
    np.testing.assert_array_equal(table.pull(ids, create=False), rows)
    table.save(tmp_path / "after", delta=True)
    table.push(ids[:20], np.ones((20, 3), np.float32))
    moved = rows[:20] - table.pull(ids[:20])
    if optimizer == "sgd":
        np.testing.assert_allclose(moved, 0.5, rtol=1e-5)
    else:  # the state is that of the push before, where there was one
        np.testing.assert_allclose(moved, np.repeat([0.5 / np.sqrt(2), 0.5], 10)[:, None].repeat(3, 1), rtol=1e-4)
    table.load(tmp_path / "before")
    table.load(tmp_path / "after")
    np.testing.assert_array_equal(table.pull(ids, create=False), rows)


def test_rows_that_are_no_numbers_are_refused_if_asked(make: Maker, tmp_path: Path) -> None:
    """A snapshot before stays what deltas build on."""
    table = make(table_config(dim=2))
    table.push(int64(1, 2, 3), np.ones((3, 2), np.float32))
    table.save(tmp_path / "good", finite=True)
    table.push(int64(2), np.full((1, 2), np.nan, np.float32))
    table.wait()
    for delta in (True, False):
        with pytest.raises(Exception, match="the row of id 2 is no number any more"):
            table.save(tmp_path / "bad", delta=delta, finite=True)
    table.save(tmp_path / "asked")
    table.load(tmp_path / "good")
    assert np.isfinite(table.pull(int64(1, 2, 3), create=False)).all()


def test_candidates_are_saved(make: Maker, tmp_path: Path) -> None:
    table = make(table_config(admit_after=3))
    table.pull(int64(1, 1, 2))
    table.save(tmp_path / "full")
    table.pull(int64(1, 2, 2))
    table.save(tmp_path / "delta", delta=True)
    table.load(tmp_path / "full")
    assert table.counts(int64(1, 2)).tolist() == [2, 1]
    assert (table.stats().rows, table.stats().candidates) == (0, 2)
    table.load(tmp_path / "delta")
    assert table.counts(int64(1, 2)).tolist() == [3, 3]
    assert (table.stats().rows, table.stats().candidates) == (2, 0)


def test_a_delta_on_another_parent_is_refused(make: Maker, tmp_path: Path) -> None:
    table = make(table_config())
    with pytest.raises(InvalidInput, match="delta"):
        table.save(tmp_path / "none", delta=True)
    push_some(table, 1)
    first = table.save(tmp_path / "full")
    push_some(table, 2)
    second = table.save(tmp_path / "delta", delta=True)
    assert first
    assert first != second
    push_some(table, 3)
    table.save(tmp_path / "other")
    rows = table.pull(np.arange(60, dtype=np.int64), create=False)
    with pytest.raises(InvalidInput, match="delta"):
        table.load(tmp_path / "delta")
    np.testing.assert_array_equal(table.pull(np.arange(60, dtype=np.int64), create=False), rows)


def test_a_snapshot_of_another_shape_is_refused(make: Maker, tmp_path: Path) -> None:
    table = make(table_config(dim=4))
    push_some(table, 1)
    table.save(tmp_path / "four")
    for config in (table_config(dim=5), table_config("adagrad", dim=4)):
        other = make(config)
        other.pull(int64(1))
        with pytest.raises(InvalidInput, match="four"):
            other.load(tmp_path / "four")
        assert other.stats().rows == 1


def test_a_missing_snapshot_is_named(make: Maker, tmp_path: Path) -> None:
    table = make(table_config())
    with pytest.raises(InvalidInput, match="nowhere"):
        table.load(tmp_path / "nowhere")
