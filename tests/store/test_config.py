"""What users give is refused with its name, its value and the rule, before the core sees it."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

from heterps.errors import InvalidInput
from heterps.store import Optimizer, SparseTable, TableConfig

NO_FLOAT32 = 1e39


@pytest.mark.parametrize(
    ("optimizer", "option", "value"),
    [
        *[("sgd", option, NO_FLOAT32) for option in ("lr", "weight_decay", "clip_norm", "clip_value")],
        *[("sgd", "lr", value) for value in ("a", None, math.nan, math.inf, -1, 10**400)],
        *[("sgd", "clip_norm", value) for value in (None, "a", 0, -1, math.nan, 1e-60)],
        ("adam", "beta1", 0.99999999),
        ("adam", "beta2", 0.99999999),
        ("adam", "beta2", "a"),
        ("adam", "eps", 1e300),
        ("momentum", "momentum", 0.99999999),
        ("adagrad", "initial_accumulator", 1e300),
        ("ftrl", "l1", 1e300),
        ("ftrl", "lr", 1e-60),
    ],
)
def test_numbers_that_no_optimizer_can_use(optimizer: str, option: str, value: Any) -> None:
    with pytest.raises(InvalidInput, match=rf"{option}.*{re.escape(repr(value))}"):
        Optimizer(name=optimizer, **{option: value})


@pytest.mark.parametrize("name", [None, 5, "sgdd", ["sgd"]])
def test_an_optimizer_has_a_name(name: Any) -> None:
    with pytest.raises(InvalidInput, match=re.escape(repr(name))):
        SparseTable(dim=4, optimizer=name)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("dim", [0, 65_537, 1.5, "4", True, None]),
        ("name", [5, None, "x" * 257]),
        ("optimizer", [None, 5, "sgd"]),
        ("seed", [1.5, 2**64]),
        ("init_scale", [-1, math.nan, "a", 1e300]),
        ("admit_after", [0, 1.5, 2**40, "2"]),
        ("expire_steps", [-1, 1.5, 2**33, None]),
        ("expire_seconds", [-1, 1e12, math.inf, math.nan, "a"]),
        ("counts", ["yes", 1, None]),
    ],
)
def test_options_that_no_table_can_have(option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidInput, match=f"{option} .*{re.escape(repr(value)[:80])}$"):
            TableConfig(**{"dim": 4, option: value})


def test_the_largest_that_are_taken() -> None:
    largest = float(np.finfo(np.float32).max)
    SparseTable(
        dim=1, name="é" * 256, admit_after=2**32 - 1, expire_steps=2**32 - 1, expire_seconds=2**32 - 1,
        optimizer="adam", beta2=0.9999999, lr=largest, clip_norm=largest, clip_value=math.inf,
    )  # fmt: skip


@pytest.mark.parametrize("threads", [0, 1.5, "2", None, 5000])
def test_threads_are_whole(threads: Any) -> None:
    with pytest.raises(InvalidInput, match=f"threads .*{re.escape(repr(threads))}"):
        SparseTable(dim=4, threads=threads)


@pytest.mark.parametrize("lr", [-1, math.nan, NO_FLOAT32, "x", None])
def test_a_rate_that_is_none_changes_nothing(lr: Any) -> None:
    table = SparseTable(dim=1, optimizer="sgd", lr=1.0, init_scale=0.0)
    with pytest.raises(InvalidInput, match=f"lr .*{re.escape(repr(lr))}"):
        table.set_lr(lr)
    table.push(np.array([1]), np.ones((1, 1), np.float32))
    assert table.pull(np.array([1])) == -1


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        ("min_count", [-1, 1.5, 2**33, "a"]),
        ("unseen_steps", [-1, 1.5, 2**33]),
        ("unseen_seconds", [-5, math.nan, math.inf, 1e12, "a"]),
    ],
)
def test_rules_of_shrinking(rule: str, values: list[Any]) -> None:
    table = SparseTable(dim=1, counts=True)
    for value in values:
        with pytest.raises(InvalidInput, match=f"{rule} .*{re.escape(repr(value))}"):
            table.shrink(**{rule: value})


def test_rows_to_write_to_are_writeable() -> None:
    table, out = SparseTable(dim=4), np.empty((3, 4), np.float32)
    out.flags.writeable = False
    with pytest.raises(InvalidInput, match="read-only"):
        table.pull(np.arange(3), out=out)
    with pytest.raises(InvalidInput, match="read-only"):
        table.bag(np.arange(3), np.arange(3), out=out)


@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_rows_are_peeked_and_put_by_ids_of_one_axis(shape: tuple[int, ...]) -> None:
    table, ids = SparseTable(dim=4), np.zeros(shape, np.int64)
    with pytest.raises(InvalidInput, match=f"one axis here, not {len(shape)}"):
        table.peek(ids)
    with pytest.raises(InvalidInput, match=f"one axis here, not {len(shape)}"):
        table.put(ids, np.zeros((2, 4), np.float32))
