"""From a placement with units to the native core's simulation: seconds of each stage's micro-batch on each resource."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps import _native
from heterps.schedule.problem import Floats, Problem
from heterps.schedule.simulation.conditions import MICRO_BATCHES, Conditions
from heterps.units import BITS_PER_BYTE, GIGA

FORWARD_COMPUTE = 1 / 3
"""Share of computing that is forward: a backward pass takes two products for each of a forward pass (towards inputs and
towards weights). Assumed for all layers; the update counts as backward."""

FORWARD_TRAFFIC = 1 / 2
"""Share of communication that goes forward: gradients are as large as activations, and as many rows go as come."""

SERIAL, PARALLEL, LINK, SHARED, SERVER = range(5)
"""Columns of the native core's loads."""


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The stages of a placement before units are chosen: seconds a sample, one entry a stage.

    `shared` is bits a sample, forward and backward.
    """

    firsts: NDArray[np.intp]
    lasts: NDArray[np.intp]
    types: NDArray[np.int32]
    serial: Floats
    parallel: Floats
    sync_serial: Floats
    sync_parallel: Floats
    server: Floats
    shared: Floats

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.firsts)


@dataclass(frozen=True, slots=True)
class Measured:
    """What a simulated pipeline gives: samples a second, and the share of the time that each resource is busy."""

    throughput: float
    compute: tuple[float, ...]
    link: tuple[float, ...]
    shared: float
    server: float
    micro_batches: int
    staleness: int


def work_of(problem: Problem, placement: NDArray[np.int32]) -> Work:
    """The stages of a placement (type numbers, one a layer); the types must be able to run their layers."""
    at = np.arange(problem.layers)
    firsts = np.concatenate([[0], np.flatnonzero(np.diff(placement)) + 1])
    lasts = np.append(firsts[1:], problem.layers) - 1
    types = placement[firsts]

    def summed(table: Floats) -> Floats:
        sums: Floats = np.add.reduceat(table[at, placement], firsts)
        return sums

    sync_parallel = summed(problem.sync_parallel)
    gbps = np.array([problem.cluster.types[problem.names[t]].bandwidth_gbps or 0.0 for t in types])
    half = FORWARD_TRAFFIC * sync_parallel * gbps * GIGA
    shared = np.stack([half, half], axis=1)
    crossing = np.array([layer.output_bytes for layer in problem.profile.layers]) * BITS_PER_BYTE
    crossing = crossing[lasts[:-1]] / problem.profile.batch_size
    shared[:-1, 0] += crossing
    shared[1:, 1] += crossing
    links = np.zeros(len(firsts))
    links[1:] += problem.cut[firsts[1:] - 1, types[1:]]
    links[:-1] += problem.cut[lasts[:-1], types[:-1]]
    return Work(
        firsts=firsts, lasts=lasts, types=types, serial=summed(problem.serial), parallel=summed(problem.parallel),
        sync_serial=summed(problem.sync_serial), sync_parallel=sync_parallel + links, server=summed(problem.server),
        shared=shared,
    )  # fmt: skip


def measure(
    problem: Problem, work: Work, units: Sequence[float], server_units: int, conditions: Conditions
) -> Measured:
    """Simulates the stages with these units; 0 samples a second if there is work for a server of no units."""
    sync = problem.goal.mode == "sync"
    micro_batches = conditions.micro_batches or problem.goal.micro_batches or MICRO_BATCHES
    staleness = conditions.steps_in_flight(stages=work.stages, sync=sync, micro_batches=micro_batches)
    if server_units == 0 and work.server.any():
        idle = (0.0,) * work.stages
        return Measured(0.0, idle, idle, 0.0, 0.0, micro_batches, staleness)
    samples = problem.profile.batch_size / micro_batches
    cycle = staleness + 1
    steps = cycle * math.ceil(
        (conditions.steps if conditions.jitter > 0 else min(conditions.steps, max(60, 10 * cycle))) / cycle
    )
    seconds, compute, link, shared, server = _native.simulate(
        _loads(work, np.asarray(units, dtype=float), server_units, conditions) * samples,
        units=[float(k) for k in units], keys=work.firsts.tolist(), server_units=float(server_units),
        micro_batches=micro_batches, staleness=staleness, warmup=2 * cycle if staleness else 1, steps=steps,
        jitter=conditions.jitter, seed=conditions.seed % 2**64,
    )  # fmt: skip
    throughput = steps * problem.profile.batch_size / seconds if seconds > 0 else math.inf

    def share(busy_s: float) -> float:
        return min(1.0, busy_s / seconds) if seconds > 0 else 0.0

    return Measured(
        throughput, tuple(map(share, compute)), tuple(map(share, link)), share(shared), share(server), micro_batches,
        staleness,
    )  # fmt: skip


def _loads(work: Work, units: Floats, server_units: int, conditions: Conditions) -> Floats:
    """Seconds a sample, of shape [stages, 2, 5]."""
    loads = np.zeros((work.stages, 2, 5))
    compute = np.array([FORWARD_COMPUTE, 1 - FORWARD_COMPUTE])
    traffic = np.array([FORWARD_TRAFFIC, 1 - FORWARD_TRAFFIC])
    loads[:, :, SERIAL] = np.outer(work.serial, compute)
    loads[:, :, PARALLEL] = np.outer(work.parallel / units, compute)
    loads[:, :, LINK] = np.outer(work.sync_serial + work.sync_parallel / units, traffic)
    if conditions.shared_gbps is not None:
        loads[:, :, SHARED] = work.shared / (conditions.shared_gbps * GIGA)
    if server_units:
        loads[:, :, SERVER] = np.outer(work.server / server_units, traffic)
    return loads
