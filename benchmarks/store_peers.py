"""Tables to measure heterps against, each behind the same four methods. No heterps is needed to run them."""

from __future__ import annotations

import atexit
import socket
import subprocess
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class Subject:
    """What is timed: one pull and one push of a batch."""

    def fill(self, rows: int) -> None:
        """Creates rows 0 to `rows`."""

    def prepare(self, batch: Array) -> Any:
        """Row numbers as this subject's data loader would give them; not timed."""
        return batch.reshape(-1)

    def step(self, batch: Any) -> None:
        """Pulls a prepared batch, then pushes gradients to it; timed."""
        raise NotImplementedError

    def finish(self) -> None:
        """Returns when every step is done; timed."""

    def report(self) -> dict[str, Any]:
        """What else to say about a filled table."""
        return {}

    def close(self) -> None:
        """Ends what the subject started."""


def scatter(rows: Array) -> Array:
    """Ids spread over all of int64 (a bijection), so that an id says nothing about its slot."""
    z = rows.astype(np.uint64)
    with np.errstate(over="ignore"):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))).view(np.int64)


def buffer(count: int, dim: int) -> Array:
    """Floats that begin on a cache line, as torch's tensors do, every page touched."""
    memory = np.zeros(count * dim + 16, np.float32)
    first = -memory.ctypes.data // 4 % 16
    rows = memory[first : first + count * dim].reshape(count, dim)
    rows[:] = 0.01
    return rows


def gradients(count: int, dim: int) -> Array:
    """The same small gradients for every batch."""
    grads = buffer(count, dim)
    grads[:] = np.random.default_rng(1).standard_normal((count, dim)) * 0.01
    return grads


class Torch(Subject):
    """torch.nn.Embedding(sparse=True) and torch.optim.Adagrad, over a dense vocabulary."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import torch

        torch.set_num_threads(spec.get("threads", 1))
        self.torch = torch
        self.embedding = torch.nn.Embedding(spec["rows"], spec["dim"], sparse=True)
        torch.nn.init.uniform_(self.embedding.weight, -0.01, 0.01)
        self.optimizer = torch.optim.Adagrad(self.embedding.parameters(), lr=0.01)
        self.grads = torch.from_numpy(gradients(int(np.prod(spec.get("batch", (4096, 26)))), spec["dim"]))

    def prepare(self, batch: Array) -> Any:
        """A tensor of row numbers."""
        return self.torch.from_numpy(batch.reshape(-1))

    def step(self, batch: Any) -> None:
        """Forward, backward, update."""
        self.embedding(batch).backward(self.grads)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Fbgemm(Subject):
    """FBGEMM's table-batched embedding on the CPU, exact row-wise Adagrad: one table, every slot a bag of one id."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import torch
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        torch.set_num_threads(spec.get("threads", 1))
        self.torch = torch
        batch, slots = spec.get("batch", (4096, 26))
        layout = spec.get("layout", "bags")  # one feature: the quickest of the three
        self.features = slots if layout == "features" else 1
        self.table = SplitTableBatchedEmbeddingBagsCodegen(
            [(spec["rows"], spec["dim"], EmbeddingLocation.HOST, ComputeDevice.CPU)],
            feature_table_map=[0] * self.features,
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=0.01,
            eps=1e-8,
            pooling_mode=PoolingMode.NONE if layout == "unpooled" else PoolingMode.SUM,
        )
        self.table.init_embedding_weights_uniform(-0.01, 0.01)
        self.offsets = torch.arange(batch * slots + 1)
        shape = (batch, slots * spec["dim"]) if layout == "features" else (batch * slots, spec["dim"])
        self.grads = torch.from_numpy(gradients(batch * slots, spec["dim"])).reshape(shape)

    def prepare(self, batch: Array) -> Any:
        """Indices in the order FBGEMM wants them: by feature, then by sample."""
        return self.torch.from_numpy(np.ascontiguousarray(batch.T if self.features > 1 else batch).reshape(-1))

    def step(self, batch: Any) -> None:
        """Forward, then backward with the update fused into it."""
        self.table(batch, self.offsets).backward(self.grads)


class Redis(Subject):
    """A Redis server on this machine: one pipeline of MGET, then one of MSET, of the batch's distinct ids.

    The client is as quick as one can be: keys and values of fixed size make requests and replies plain array copies. It
    leaves out everything Redis does not do: gradients, optimizer state, spreading rows to duplicates.
    """

    KEYS = 1000
    """Keys in one command of a pipeline."""

    def __init__(self, spec: dict[str, Any]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"]
        self.server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        atexit.register(self.server.kill)  # also when what follows fails
        deadline = time.monotonic() + 20
        while True:
            try:
                self.socket = socket.create_connection(("127.0.0.1", port))
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.value_bytes = 4 * spec["dim"]

    def fill(self, rows: int) -> None:
        """Values of zeros."""
        for first in range(0, rows, 100_000):
            ids = scatter(np.arange(first, min(first + 100_000, rows)))
            self.set(ids, np.zeros((len(ids), self.value_bytes), np.uint8))

    def prepare(self, batch: Array) -> Array:
        """Each distinct id once."""
        return np.unique(scatter(batch.reshape(-1)))

    def step(self, batch: Array) -> None:
        """Gets all values and sets them again."""
        self.set(batch, self.get(batch))

    def get(self, ids: Array) -> Array:
        """MGET of all ids, 1000 a command, all sent before the first reply is awaited."""
        keys = self.lengthed(ids.astype("<i8").view(np.uint8).reshape(-1, 8))
        chunks = [keys[i : i + self.KEYS] for i in range(0, len(keys), self.KEYS)]
        requests = [b"*%d\r\n$4\r\nMGET\r\n" % (len(chunk) + 1) + chunk.tobytes() for chunk in chunks]
        cell = len(b"$%d\r\n" % self.value_bytes) + self.value_bytes + 2
        head = [len(b"*%d\r\n" % len(chunk)) for chunk in chunks]
        reply = self.exchange(requests, sum(head) + cell * len(ids))
        values, at, start = np.empty((len(ids), self.value_bytes), np.uint8), 0, 0
        for chunk, skip in zip(chunks, head, strict=True):
            at += skip
            cells = reply[at : at + cell * len(chunk)].reshape(len(chunk), cell)
            values[start : start + len(chunk)] = cells[:, -self.value_bytes - 2 : -2]
            at, start = at + cell * len(chunk), start + len(chunk)
        return values

    def set(self, ids: Array, values: Array) -> None:
        """MSET of all ids, 1000 a command."""
        cells = np.hstack([self.lengthed(ids.astype("<i8").view(np.uint8).reshape(-1, 8)), self.lengthed(values)])
        chunks = [cells[i : i + self.KEYS] for i in range(0, len(cells), self.KEYS)]
        requests = [b"*%d\r\n$4\r\nMSET\r\n" % (2 * len(chunk) + 1) + chunk.tobytes() for chunk in chunks]
        reply = self.exchange(requests, 5 * len(chunks))
        if reply.tobytes() != b"+OK\r\n" * len(chunks):
            raise RuntimeError(f"redis: {reply[:80].tobytes()!r}")

    @staticmethod
    def lengthed(values: Array) -> Array:
        """Each row as a bulk string of the Redis protocol."""
        head = np.frombuffer(b"$%d\r\n" % values.shape[1], np.uint8)
        cells = np.empty((len(values), len(head) + values.shape[1] + 2), np.uint8)
        cells[:, : len(head)], cells[:, len(head) : -2] = head, values
        cells[:, -2:] = np.frombuffer(b"\r\n", np.uint8)
        return cells

    def exchange(self, requests: list[bytes], reply_bytes: int) -> Array:
        """Sends on one thread while it receives on this one: a full pipe must not block both sides."""
        sender = threading.Thread(target=self.socket.sendall, args=(b"".join(requests),))
        sender.start()
        reply = np.empty(reply_bytes, np.uint8)
        view, got = memoryview(reply), 0
        while got < reply_bytes:
            n = self.socket.recv_into(view[got:])
            if n == 0:
                raise RuntimeError("redis closed the connection")
            got += n
        sender.join()
        return reply

    def close(self) -> None:
        """Ends the server."""
        self.server.terminate()
        self.server.wait()


class RedisPy(Redis):
    """The same through the usual Python client (redis-py with hiredis)."""

    def get(self, ids: Array) -> Any:
        """MGET of all ids, 1000 a command."""
        pipe, keys = self.client().pipeline(transaction=False), [int(i).to_bytes(8, "little", signed=True) for i in ids]
        for i in range(0, len(keys), self.KEYS):
            pipe.mget(keys[i : i + self.KEYS])
        self.keys = keys
        return [value for values in pipe.execute() for value in values]

    def set(self, ids: Array, values: Any) -> None:
        """MSET of what `get` gave; filling goes the quick way."""
        if isinstance(values, np.ndarray):
            return super().set(ids, values)
        pipe, pairs = self.client().pipeline(transaction=False), list(zip(self.keys, values, strict=True))
        for i in range(0, len(pairs), self.KEYS):
            pipe.mset(dict(pairs[i : i + self.KEYS]))
        pipe.execute()

    def client(self) -> Any:
        """redis-py on the server's port."""
        if not hasattr(self, "_client"):
            import redis

            self._client = redis.Redis(port=self.socket.getpeername()[1])
        return self._client
