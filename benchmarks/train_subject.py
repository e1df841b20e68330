"""One way to train ctrdnn, in a process of its own, timed on request. Started by `train.py`.

    python train_subject.py '{"subject": "plain", "rows": 2000000, "batch": 4096, "hidden": [400, 400, 400]}'

Prints a line of JSON when it is ready, and then answers each line on standard input, `{"steps": n}`, with the seconds
that n steps took. All subjects see the same batches: 26 ids, 13 numbers and a label a sample, from the host's memory.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

SLOTS, DENSE = 26, 13
WARM_UP = 12
"""Steps before those that are timed: pipelines are full while the clock runs."""


def batches(spec: dict[str, Any]) -> list[dict[str, Tensor]]:
    """A few batches, used again and again: ids uniform, or Zipf (1.05) with popular ones anywhere."""
    rng = np.random.default_rng(0)
    rows, size = spec["rows"], spec["batch"]
    if spec.get("ids", "zipf") == "zipf":
        weights = np.arange(1, rows + 1, dtype=np.float64) ** -1.05
        cumulated = np.cumsum(weights / weights.sum())
        order = rng.permutation(rows)
    made = []
    for _ in range(spec.get("distinct_batches", 12)):
        if spec.get("ids", "zipf") == "zipf":
            ids = order[np.searchsorted(cumulated, rng.random((size, SLOTS))).clip(max=rows - 1)]
        else:
            ids = rng.integers(0, rows, (size, SLOTS))
        made.append(
            {
                "ids": torch.from_numpy(np.ascontiguousarray(ids)),
                "dense": torch.from_numpy(rng.standard_normal((size, DENSE), dtype=np.float32)),
                "label": torch.from_numpy((rng.random(size) < 0.25).astype(np.float32)),
            }
        )
    return made


def tower(spec: dict[str, Any]) -> nn.Sequential:
    """The dense half."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    width = SLOTS * spec["dim"] + DENSE
    for hidden in spec["hidden"]:
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, 1))


class Heterps:
    """heterps, by a plan: all on the cores, all on the GPU, or embeddings on the cores and the rest on the GPU."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.requests: queue.Queue[int] = queue.Queue()
        self.answers: queue.Queue[float] = queue.Queue()
        self.batches = batches(spec)
        from heterps.telemetry import Recorder

        self.recorder = Recorder()
        threading.Thread(target=self.train, args=(spec,), daemon=True).start()
        self.run(spec.get("fill_steps", len(self.batches)))

    def train(self, spec: dict[str, Any]) -> None:
        """One run that never ends: steps are fed as they are asked for."""
        options = {"mode": "async", "staleness": 4} if spec.get("placement") == "cpu+gpu" else {}
        try:
            import heterps
            from heterps.models import zoo

            chain = zoo.build("ctrdnn", dim=spec["dim"], hidden=tuple(spec["hidden"]))
            heterps.train(chain, self.feed(), plan=plan(spec, len(chain.layers)), steps=10**9,
                          precision=spec.get("precision", "float32"), recorder=self.recorder, **options)  # fmt: skip
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)

    def feed(self) -> Iterator[dict[str, Tensor]]:
        """Batches, as many as are asked for, with the clock between the first and the last of those that count."""
        turn = 0
        while True:
            steps = self.requests.get()
            for number in range(WARM_UP + steps + 1):
                if number == WARM_UP:
                    began = time.perf_counter()
                if number == WARM_UP + steps:
                    taken = time.perf_counter() - began
                yield self.batches[turn % len(self.batches)]
                turn += 1
            while self.updates() < turn:  # nothing goes on while others have their turn
                time.sleep(0.001)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.answers.put(taken)

    def updates(self) -> int:
        """Steps that every stage has finished."""
        done = [total.count for (_, name), total in self.recorder.totals().items() if name == "update"]
        return min(done, default=0)

    def run(self, steps: int) -> float:
        """Seconds for so many steps."""
        self.requests.put(steps)
        return self.answers.get()


def plan(spec: dict[str, Any], layers: int) -> Any:
    """A plan for the placement."""
    from heterps.plan import Plan

    cuts = {"cpu": [("cpu", layers)], "gpu": [("gpu", layers)], "cpu+gpu": [("cpu", 1), ("gpu", layers - 1)]}
    stages, first = [], 0
    for name, count in cuts[spec.get("placement", "cpu")]:
        units = spec.get("threads", 1) if name == "cpu" else 1
        stages.append({"first": first, "last": first + count - 1, "type": name, "units": units})
        first += count
    return Plan.model_validate({
        "format": "heterps.plan/1", "model": "ctrdnn", "method": "fixed",
        "placement": [stage["type"] for stage in stages for _ in range(stage["first"], stage["last"] + 1)],
        "types": {"cpu": {"device": "cpu", "price_per_hour": 0.04}, "gpu": {"device": "cuda", "price_per_hour": 3.0}},
        "stages": stages, "predicted": {"throughput": 1.0, "usd_per_hour": 1.0, "usd_per_million_samples": 1.0},
        "search": {"seconds": 0.0, "evaluations": 0, "optimal": False},
        "inputs": {"profile_sha256": "", "cluster_sha256": "", "min_throughput": 0.0},
    })  # fmt: skip


class Looped:
    """A plain training loop."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.batches, self.turn = spec, batches(spec), 0
        self.net = tower(spec).to(spec.get("device", "cpu"))
        self.dense = torch.optim.Adam(self.net.parameters(), lr=1e-3, fused=spec.get("fused", False))
        self.make()
        self.run(3)

    def make(self) -> None:
        """The sparse half."""

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        """What the tower reads."""
        raise NotImplementedError

    def update(self) -> None:
        """Of the sparse half."""

    def step(self, batch: dict[str, Tensor]) -> None:
        """Forward, backward and update."""
        device = self.spec.get("device", "cpu")
        with torch.autocast(device, torch.bfloat16, enabled=self.spec.get("precision") == "bf16"):
            logits = self.net(self.features(batch)).squeeze(1)
            loss = functional.binary_cross_entropy_with_logits(logits, batch["label"].to(device))
        self.dense.zero_grad()
        loss.backward()
        self.dense.step()
        self.update()

    def run(self, steps: int) -> float:
        """Seconds for so many steps."""
        began = time.perf_counter()
        for _ in range(steps):
            self.step(self.batches[self.turn % len(self.batches)])
            self.turn += 1
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - began


class DenseAlone(Looped):
    """The dense layers only, on inputs that are there already and want their gradient, as rows do."""

    def make(self) -> None:
        """Inputs."""
        size = (self.spec["batch"], SLOTS * self.spec["dim"] + DENSE)
        self.inputs = [torch.randn(size, requires_grad=True) for _ in range(4)]

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        """One of a few inputs."""
        inputs = self.inputs[self.turn % 4]
        inputs.grad = None
        return inputs


class Plain(Looped):
    """`nn.Embedding(sparse=True)` with Adagrad, on the device or on the cores before it."""

    def make(self) -> None:
        """Rows."""
        self.where = "cpu" if self.spec.get("placement") == "cpu+gpu" else self.spec.get("device", "cpu")
        self.rows = nn.Embedding(self.spec["rows"], self.spec["dim"], sparse=True).to(self.where)
        self.sparse = torch.optim.Adagrad(self.rows.parameters(), lr=0.01)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        """Rows and numbers side by side."""
        self.sparse.zero_grad()
        device = self.spec.get("device", "cpu")
        rows = self.rows(batch["ids"].to(self.where)).flatten(1).to(device)
        return torch.cat([rows, batch["dense"].to(device)], dim=1)

    def update(self) -> None:
        """Of the rows."""
        self.sparse.step()


class TorchRec(Looped):
    """TorchRec's fused tables (FBGEMM) on the CPU, exact row-wise Adagrad."""

    def make(self) -> None:
        """One table, every slot a bag of one id."""
        from fbgemm_gpu.split_embedding_configs import EmbOptimType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        table = (self.spec["rows"], self.spec["dim"], EmbeddingLocation.HOST, ComputeDevice.CPU)
        self.table = SplitTableBatchedEmbeddingBagsCodegen(
            [table], optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD, learning_rate=0.01, eps=1e-8
        )
        self.table.init_embedding_weights_uniform(-0.01, 0.01)
        self.offsets = torch.arange(self.spec["batch"] * SLOTS + 1)

    def features(self, batch: dict[str, Tensor]) -> Tensor:
        """Rows and numbers side by side; the update of the rows is part of their backward."""
        rows = self.table(batch["ids"].reshape(-1), self.offsets)
        return torch.cat([rows.reshape(self.spec["batch"], -1), batch["dense"]], dim=1)


SUBJECTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "heterps": Heterps, "dense": DenseAlone, "plain": Plain, "torchrec": TorchRec,
}  # fmt: skip


def main() -> None:
    """Answers requests until standard input ends."""
    spec = {"dim": 16, **json.loads(sys.argv[1])}
    torch.set_num_threads(spec.get("threads", 1))
    subject = SUBJECTS[spec["subject"]](spec)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": subject.run(json.loads(line)["steps"])}), flush=True)
    os._exit(0)  # a run that never ends


if __name__ == "__main__":
    main()
