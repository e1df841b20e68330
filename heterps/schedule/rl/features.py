"""What the policy sees of a problem: numbers without units, so that one set of weights serves every problem.

Times become money: a layer's time on a type, at the throughput asked for, is units, and units have a price. Everything
is relative to `reference`, the dollars an hour if every layer ran on its cheapest type with fractional units and free
links; logarithms keep the range small.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps.schedule.problem import Problem

FEATURES = 25
"""Features of a layer on a type."""

Float32s = NDArray[np.float32]


def features(problem: Problem) -> Float32s:
    """Features of shape [types, layers, FEATURES]; those of the layer or the type alone repeat along the other axis."""
    layers, types = problem.layers, problem.types
    runs = problem.runnable
    parallel = np.where(runs, problem.parallel, 0.0)
    cheapest = np.where(runs, problem.price * (parallel + problem.serial), np.inf).min(axis=1)
    throughput = problem.goal.throughput_floor or 1.0 / max(parallel.max(axis=1).sum(), 1e-12)
    reference = max(float(cheapest.sum()) * throughput, 1e-12)
    share = throughput * problem.price / reference * layers  # a second a sample -> its share of the money

    def money(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(np.log(np.clip(seconds * share, 1e-4, 1e4)))

    compute = money(parallel)
    before = np.vstack([np.zeros((1, types)), problem.cut[:-1]])
    server_price = problem.price[problem.server_type] if problem.server_type >= 0 else 0.0
    server = problem.server * throughput * server_price / reference * layers
    units = throughput * parallel
    limit = np.where(np.isinf(problem.limit), 1e6, problem.limit)
    whole = np.where(runs, units, 0.0).sum(axis=0)
    total = np.where(runs, problem.price * units, 10.0 * reference / layers).sum(axis=0)
    total = np.maximum(total, 1e-12)  # a type on which nothing is parallel
    state = problem.replicated + problem.sharded
    position = np.arange(layers) / max(layers - 1, 1)
    kinds = np.array([layer.kind == "embedding" for layer in problem.profile.layers], dtype=float)
    inputs = np.array([layer.input_bytes for layer in problem.profile.layers]) / problem.profile.batch_size
    columns: list[NDArray[np.float64]] = [
        runs.astype(float),
        compute,
        compute - np.where(runs, compute, np.inf).min(axis=1, keepdims=True),
        np.clip(throughput * problem.serial, 0, 2),
        money(problem.sync_parallel),
        np.clip(throughput * problem.sync_serial, 0, 2),
        money(before),
        money(problem.cut),
        np.log(np.clip(server, 1e-4, 1e4)),
        np.log(np.clip(units, 1e-4, 1e4)),
        np.clip(units / limit, 0, 3),
        np.clip(problem.replicated[:, None] / problem.memory, 0, 2),
        np.clip(problem.sharded[:, None] / problem.memory / 8, 0, 2),
        _rows(np.log(problem.price / problem.price.min()), layers),
        _rows(np.log(np.clip(problem.price / reference, 1e-5, 1e3)), layers),
        _rows(np.clip(whole / limit, 0, 5), layers),
        _rows(np.log(total / total.min()), layers),
        _rows(np.isinf(problem.limit).astype(float), layers),
        _columns(position, types),
        _columns(1.0 - 2.0 * np.abs(position - 0.5), types),
        _columns(kinds, types),
        _columns(np.log1p(inputs) / 10, types),
        _columns(np.log1p(state) / 20, types),
        np.full((layers, types), np.log(layers) / 3),
        np.full((layers, types), 1.0 / problem.goal.micro_batches if problem.goal.micro_batches else 0.0),
    ]
    return np.stack(columns, axis=-1).transpose(1, 0, 2).astype(np.float32)


def _rows(values: NDArray[np.float64], layers: int) -> NDArray[np.float64]:
    return np.tile(values, (layers, 1))


def _columns(values: NDArray[np.float64], types: int) -> NDArray[np.float64]:
    return np.tile(values[:, None], (1, types))
