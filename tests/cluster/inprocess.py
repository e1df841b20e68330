"""The replicas and shards of a run as threads of one process, without Ray: real sockets, keys, servers and groups."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from heterps.models import Chain
from heterps.plan import Plan
from heterps.ps import Client, Keys, Server
from heterps.runtime.cluster.layout import lay_out
from heterps.runtime.cluster.parts import join_parts
from heterps.runtime.cluster.replica import Replica
from heterps.runtime.cluster.work import Progress, Work, for_processes
from heterps.runtime.settings import Settings
from heterps.runtime.tables import bind_tables
from tests.cluster.jobs import PATIENCE_S

HOST = "127.0.0.1"


def losses_of(done: list[Progress], steps: int) -> list[float]:
    parts = [progress.losses for progress in done if progress.losses]
    assert all(len(part) == steps for part in parts)
    return [sum(each) for each in zip(*parts, strict=True)]


def joined(parts: list[Progress]) -> Progress:
    """What a replica told of several stretches, as if they had been one."""
    last = parts[-1]
    return replace(
        last, losses=sum((part.losses for part in parts), ()), busy_s=sum(part.busy_s for part in parts),
        waited_s=sum(part.waited_s for part in parts), aucs=sum((part.aucs for part in parts), ()),
    )  # fmt: skip


def run_here(
    make: Any, data: Any, plan: Plan, *, steps: int, micro_batches: int, shards: int, replicas: Any, path: Any,
    narrow: bool = False, share: bool = True, sums: str = "mail", stretches: Sequence[tuple[int, int]] = (),
    **settings: Any,
) -> tuple[Chain, list[float], list[Progress]]:  # fmt: skip
    """Trains; gives a chain with the trained weights and rows (its client stays open), losses, and the progress.

    Replicas are called for `stretches` (until, allowed), by default for one.
    """
    keys = Keys.generate()
    layout = lay_out(plan, tables=len(make().embeddings), replicas=replicas, shards=shards)
    given = for_processes(Settings(steps=steps, **settings), micro_batches=micro_batches)
    work = Work(factory=lambda: (make(), data), settings=given, layout=layout, narrow=narrow, share=share, sums=sums,
                timeout_s=2 * PATIENCE_S)  # fmt: skip
    seats = layout.seats()
    with ExitStack() as stack:
        servers = [stack.enter_context(Server(f"tcp://{HOST}:*", keys).start()) for _ in range(layout.shards)]
        addresses = [server.addresses[0] for server in servers]
        members = [Replica(work, seat, keys, 1, HOST) for seat in seats]
        pool = stack.enter_context(ThreadPoolExecutor(len(members)))

        def all_do(call: Any) -> list[Any]:
            futures = [pool.submit(call, member) for member in members]
            for future in as_completed(futures):
                future.result()  # the first error is the cause of the others
            return [future.result() for future in futures]

        found = {seat: m.open() for seat, m in zip(seats, members, strict=True)}  # models draw from one generator here
        all_do(lambda m: m.connect(found, addresses))
        all_do(lambda m: m.begin(None, 0, 0, None))
        told = [all_do(lambda m: m.run(until, allowed)) for until, allowed in stretches or [(steps, steps)]]  # noqa: B023
        done = [joined(list(parts)) for parts in zip(*told, strict=True)]
        for member, seat in zip(members, seats, strict=True):
            if seat.replica == 0:
                member.save(str(path))
        all_do(lambda m: m.close())
        chain = make()
        chain.load_state_dict(dict(join_parts(path, len(layout.stages)).dense))
        with Client(addresses, keys) as client:
            remote = bind_tables(chain, client=client)
            folder = path / "tables"
            for name, table in remote.items():
                table.save(folder / name)  # type: ignore[attr-defined]
    fresh = make()
    fresh.load_state_dict(chain.state_dict())
    for name, local in bind_tables(fresh).items():
        local.load(folder / name)  # type: ignore[attr-defined]
    torch.set_num_threads(2)
    return fresh, losses_of(done, steps), done
