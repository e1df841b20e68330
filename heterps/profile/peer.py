"""The process at the other end of a link that is measured: `python -m heterps.profile.peer KIND ...`."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable


def echo() -> None:
    """Answers the last of each row of messages; prints its address first."""
    import zmq

    _end_with_parent()
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.bind("tcp://127.0.0.1:*")
        _say(socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode())  # type: ignore[union-attr]
        while True:
            kind, _ = socket.recv_multipart(copy=True)
            if kind == b"last":
                socket.send(b"")


def reduce(store: str, rank: str) -> None:
    """Sums gradients with the other rank; prints bytes a second."""
    from datetime import timedelta

    import torch
    from torch import distributed

    parent = _end_with_parent()
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=2, timeout=timedelta(seconds=60)
    )
    grads = torch.zeros(1 << 20)  # 4 MB, as DDP sends at a time
    seconds = []
    for _ in range(8):
        distributed.barrier()
        began = time.perf_counter()
        distributed.all_reduce(grads)
        seconds.append(time.perf_counter() - began)
    distributed.barrier()
    _say(str(grads.nbytes / min(seconds)))
    parent.join()


def serve(address: str) -> None:
    """Serves tables; prints its address, then, for each line it gets, the processor time it has used."""
    from heterps.ps.server import Server

    server = Server(address, threads=1)
    server.start()
    _say(server.addresses[0])
    for _ in sys.stdin:
        _say(str(time.process_time()))


def _end_with_parent() -> threading.Thread:
    """Ends this process when its input is closed, as it is when whoever started it is gone, in whatever way."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    kinds: dict[str, Callable[..., None]] = {"echo": echo, "reduce": reduce, "serve": serve}
    kinds[sys.argv[1]](*sys.argv[2:])
