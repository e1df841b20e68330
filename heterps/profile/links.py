"""What moving bytes costs here: between processes, in an all-reduce, to and from a GPU, and at a parameter server.

Other ends are real processes (`heterps.profile.peer`), as in a run over several of them.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import zmq

from heterps.documents import Part
from heterps.errors import HeterPSError
from heterps.models.batch import Bags, Batch
from heterps.models.layer import SparseEmbedding
from heterps.profile.fit import fit_scaling
from heterps.ps import Client
from heterps.store import SparseTable
from heterps.units import BITS_PER_BYTE, GIGA

MESSAGE_BYTES = 4 << 20
"""Of a bandwidth measurement: some micro-batch's activations."""
START_TIMEOUT_S = 60.0


class Links(Part):
    """Links of this machine."""

    process_gbps: float
    """Between two processes over TCP, one way."""
    round_trip_s: float
    """Of a small message between two processes."""
    all_reduce_bytes_per_s: float
    """Gradients that two processes sum in a second (gloo)."""
    host_to_device_gbps: float | None = None
    device_to_host_gbps: float | None = None
    """From and to pinned memory; None without a GPU."""


class Served(Part):
    """An embedding layer whose table is on a parameter server, for one batch."""

    sync_s: float
    """Seconds the worker spends on pull and push."""
    beta: float = 1.0
    """The share of it that two workers halve, each with half of the batch."""
    ps_s: float
    """Seconds of the server's processor."""


def measure_links() -> Links:
    """Measures all links; takes some seconds, mostly the start of processes."""
    gbps, round_trip_s = _between_processes()
    up, down = _to_gpu() if torch.cuda.is_available() else (None, None)
    return Links(process_gbps=gbps, round_trip_s=round_trip_s, all_reduce_bytes_per_s=_all_reduce(),
                 host_to_device_gbps=up, device_to_host_gbps=down)  # fmt: skip


def measure_served(
    layers: Sequence[SparseEmbedding], batches: Sequence[Batch], *, rounds: int = 6
) -> dict[str, Served]:
    """Pulls and pushes the ids of batches at a server process; gives the cost of each layer, by name."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, _peer("serve", f"ipc://{folder}/ps") as server:
        address = server.line()
        client = Client([address])
        try:
            for layer in layers:
                local = SparseTable(name=layer.table_name, **layer.options)
                table = client.table(local.config)
                found[layer.name] = _serve(layer, table, batches, server, rounds)
        finally:
            client.close()
    return found


def _serve(layer: SparseEmbedding, table: Any, batches: Sequence[Batch], server: _Peer, rounds: int) -> Served:
    whole, half, worked = [], [], []
    for number in range(rounds + 2):
        ids = layer.ids_of(batches[number % len(batches)])
        flat = (ids.ids if isinstance(ids, Bags) else ids).reshape(-1)
        before = server.worked_s()
        whole.append(_exchanged_s(table, flat))
        worked.append(server.worked_s() - before)
        half.append(_exchanged_s(table, flat[: max(1, len(flat) // 2)]))
    times = {1: statistics.median(whole[2:]), 2: statistics.median(half[2:])}
    return Served(sync_s=times[1], beta=fit_scaling(times).alpha, ps_s=statistics.median(worked[2:]))


def _exchanged_s(table: Any, ids: torch.Tensor) -> float:
    began = time.perf_counter()
    rows = torch.as_tensor(table.pull(ids))
    table.push(ids, torch.zeros_like(rows))
    table.wait()
    return time.perf_counter() - began


class _Peer:
    """The process at the other end; talks line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def line(self) -> str:
        """The next line it writes."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline().strip()
        if not text:
            raise HeterPSError(f"measuring links: the other process ended (exit code {self.process.wait()})")
        return text

    def worked_s(self) -> float:
        """Seconds of processor time it has used so far."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.line())


@contextmanager
def _peer(*arguments: str) -> Iterator[_Peer]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "heterps.profile.peer", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
    )  # fmt: skip
    try:
        yield _Peer(process)
    finally:
        process.kill()
        process.communicate()


def _between_processes() -> tuple[float, float]:
    with _peer("echo") as peer, zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.connect(peer.line())
        socket.setsockopt(zmq.RCVTIMEO, int(1000 * START_TIMEOUT_S))
        socket.setsockopt(zmq.LINGER, 0)
        round_trip_s = min(_timed_echo(socket, b"x", 1) for _ in range(30))
        payload = bytes(MESSAGE_BYTES)
        seconds = min(_timed_echo(socket, payload, 16) for _ in range(4))
    return 16 * MESSAGE_BYTES * BITS_PER_BYTE / GIGA / seconds, round_trip_s


def _timed_echo(socket: zmq.Socket[bytes], payload: bytes, count: int) -> float:
    """Sends messages and waits for the answer to the last one."""
    began = time.perf_counter()
    for left in range(count, 0, -1):
        socket.send_multipart([b"last" if left == 1 else b"more", payload], copy=False)
    socket.recv()
    return time.perf_counter() - began


def _all_reduce() -> float:
    with (
        tempfile.TemporaryDirectory() as folder,
        _peer("reduce", f"{folder}/store", "0") as first,
        _peer("reduce", f"{folder}/store", "1") as second,
    ):
        return min(float(first.line()), float(second.line()))


def _to_gpu() -> tuple[float, float]:
    host = torch.empty(256 << 20, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(host, device="cuda", pin_memory=False)
    rates = []
    for target, source in ((device, host), (host, device)):
        best = float("inf")
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            best = min(best, time.perf_counter() - began)
        rates.append(host.nbytes * BITS_PER_BYTE / GIGA / best)
    return rates[0], rates[1]
