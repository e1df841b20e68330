"""The simulated pipeline again, slowly and by another route: micro-batches as objects, no counters, no chance."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(eq=False)
class MicroBatch:
    number: int
    visit: int = 0
    """0..n-1 forward, n..2n-1 backward."""
    needs: set[str] = field(default_factory=set)


def simulate(loads: np.ndarray, *, micro_batches: int, staleness: int, warmup: int, steps: int) -> float:
    """Seconds from the end of step `warmup` to that of step `warmup + steps`; `loads` as the native core takes them."""
    n = len(loads)
    waiting: dict[str, list[tuple[MicroBatch, float]]] = {}
    serving: dict[str, tuple[float, MicroBatch]] = {}
    ends = [0.0]
    entered = returned = 0
    now = 0.0

    def arrive(batch: MicroBatch) -> None:
        stage, way = (batch.visit, 0) if batch.visit < n else (2 * n - 1 - batch.visit, 1)
        serial, parallel, link, shared, server = loads[stage, way]
        asks = {f"units{stage}": serial + parallel, f"link{stage}": link, "shared": shared, "server": server}
        batch.needs = {name for name, work in asks.items() if work > 0}
        for name in batch.needs:
            waiting.setdefault(name, []).append((batch, asks[name]))

    while len(ends) <= warmup + steps:
        while entered < (len(ends) - 1 + staleness + 1) * micro_batches:
            arrive(MicroBatch(entered))
            entered += 1
        for name, queue in waiting.items():
            if name not in serving and queue:
                chosen = max(queue, key=lambda entry: (entry[0].visit, -entry[0].number))
                queue.remove(chosen)
                serving[name] = (now + chosen[1], chosen[0])
        name = min(serving, key=lambda name: serving[name][0])
        now, batch = serving.pop(name)
        batch.needs.remove(name)
        if batch.needs:
            continue
        batch.visit += 1
        if batch.visit < 2 * n:
            arrive(batch)
            continue
        returned += 1
        if returned % micro_batches == 0:
            ends.append(now)
    return ends[warmup + steps] - ends[warmup]
