"""The process at the other end of a link that is measured: `python -m heterps.profile.peer KIND ...`."""

from __future__ import annotations

import sys
import time


def echo() -> None:
    """Answers the last of each row of messages; prints its address first."""
    import zmq

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
    sys.stdin.read()


def serve(address: str) -> None:
    """Serves tables; prints its address, then, for each line it gets, the processor time it has used."""
    from heterps.ps.server import Server

    server = Server(address, threads=1)
    server.start()
    _say(server.addresses[0])
    for _ in sys.stdin:
        _say(str(time.process_time()))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"echo": echo, "reduce": reduce, "serve": serve}[sys.argv[1]](*sys.argv[2:])
