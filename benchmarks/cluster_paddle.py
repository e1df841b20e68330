"""Paddle's parameter server on ctrdnn: one server, one trainer, asynchronous. Started by `cluster.py`.

    .peers/paddle/bin/python cluster_paddle.py '{"rows": 2000000, "batch": 4096, "hidden": [64, 32], "threads": 2}'

Answers each line on standard input, `{"steps": n}`, with the seconds that n steps took, on average over whole passes.

Data is in the trainer's memory beforehand, and Paddle's own threads feed the trainer from there (`train_from_dataset`).
The other way, `Executor.run` with batches from Python, takes more of the cores, and in this mode of version 2.6 it
never sends the gradients of dense weights. Rows have one sum of squares each, as heterps' `rowwise-adagrad`; dense
weights have Adam. Paddle joins the row gradients of several steps before it sends them, as it does by default.
"""

from __future__ import annotations

import atexit
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clicks import DENSE, SLOTS, batches

DISTINCT = 8
REPEATED = 16
"""Batches, and how often a pass goes over them: 128 steps, so that what a pass begins and ends with hardly counts."""
TABLE = "rows"


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def set_role(spec: dict[str, Any], role: str) -> None:
    """What Paddle reads from the environment, most of it while it is imported."""
    os.environ |= {
        "TRAINING_ROLE": role, "PADDLE_PSERVERS_IP_PORT_LIST": f"127.0.0.1:{spec['port']}", "POD_IP": "127.0.0.1",
        "PADDLE_PORT": str(spec["port"]), "PADDLE_TRAINERS_NUM": "1", "PADDLE_TRAINER_ID": "0",
        "PADDLE_TRAINER_ENDPOINTS": "127.0.0.1:0", "CPU_NUM": str(spec["threads"]), "GLOG_minloglevel": "3",
        "OMP_NUM_THREADS": "1",  # of each of the trainer's threads
    }  # fmt: skip
    if spec.get("avx2"):
        os.environ["MKL_DEBUG_CPU_TYPE"] = "5"  # its MKL takes the slowest kernels on processors that are not Intel's


def network(spec: dict[str, Any], paddle: Any) -> tuple[list[Any], Any]:
    """Inputs in the order of the data, and the loss."""
    static, dim = paddle.static, spec["dim"]
    ids = [static.data(f"slot{number}", [None, 1], "int64", lod_level=1) for number in range(SLOTS)]
    dense, label = static.data("dense", [None, DENSE], "float32"), static.data("label", [None, 1], "float32")
    shared = paddle.ParamAttr(name=TABLE)
    rows = [static.nn.sparse_embedding(slot, size=[spec["rows"], dim], param_attr=shared) for slot in ids]
    values = paddle.concat([*(static.nn.sequence_lod.sequence_pool(row, "sum") for row in rows), dense], axis=1)
    for width in spec["hidden"]:
        values = static.nn.fc(values, width, activation="relu")
    logit = static.nn.fc(values, 1)
    loss = paddle.mean(paddle.nn.functional.binary_cross_entropy_with_logits(logit, label))
    return [*ids, dense, label], loss


def build(spec: dict[str, Any]) -> tuple[Any, Any, list[Any]]:
    """Paddle, its fleet, and the inputs of the network, which is set up for servers that update as gradients come."""
    import paddle
    from paddle.distributed import fleet

    paddle.enable_static()
    fleet.init(fleet.PaddleCloudRoleMaker(is_collective=False))
    inputs, loss = network(spec, paddle)
    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    prefix = f"table_parameters.{TABLE}."
    table: dict[str, Any] = {"table_class": "MemorySparseTable", "accessor.accessor_class": "SparseAccessor"}
    for part in ("embed", "embedx"):  # the first column of a row, and the others
        rule = {"learning_rate": 0.01, "initial_g2sum": 1e-8, "initial_range": 0.01}
        table[f"accessor.{part}_sgd_param.name"] = "SparseAdaGradSGDRule"
        table |= {f"accessor.{part}_sgd_param.adagrad.{name}": value for name, value in rule.items()}
    strategy.sparse_table_configs = {TABLE: {prefix + name: value for name, value in table.items()}}
    fleet.distributed_optimizer(paddle.optimizer.Adam(1e-3), strategy).minimize(loss)
    return paddle, fleet, inputs


def write_data(spec: dict[str, Any], path: Path) -> None:
    """Samples as lines in Paddle's format: for each input, how many values, and the values."""
    with path.open("w") as file:
        for batch in batches(rows=spec["rows"], size=spec["batch"], count=DISTINCT, ids=spec["ids"]):
            for ids, dense, label in zip(batch["ids"], batch["dense"], batch["label"], strict=True):
                slots = " ".join(f"1 {one}" for one in ids)
                file.write(f"{slots} {DENSE} {' '.join(f'{value:.5f}' for value in dense)} 1 {label:.1f}\n")


class Trainer:
    """Runs passes over the data."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._paddle, fleet, inputs = build(spec)
        self._executor = self._paddle.static.Executor(self._paddle.CPUPlace())
        self._executor.run(self._paddle.static.default_startup_program())
        fleet.init_worker()
        self._data = self._paddle.distributed.InMemoryDataset()
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "data.txt"
            write_data(spec, path)
            self._data.init(
                batch_size=spec["batch"], thread_num=spec["threads"], use_var=inputs, pipe_command="cat"
            )  # fmt: skip
            self._data.set_filelist([str(path)] * REPEATED)
            self._data.load_into_memory()
        there = self._data.get_memory_data_size()
        assert there == DISTINCT * REPEATED * spec["batch"], f"{there} samples are in memory"
        self._one_pass()

    def _one_pass(self) -> None:
        program = self._paddle.static.default_main_program()
        self._executor.train_from_dataset(program, self._data, thread=self._spec["threads"])

    def run(self, steps: int) -> float:
        """Seconds for so many steps."""
        passes = max(1, round(steps / (DISTINCT * REPEATED)))
        began = time.perf_counter()
        for _ in range(passes):
            self._one_pass()
        return (time.perf_counter() - began) * steps / (passes * DISTINCT * REPEATED)


def main() -> None:
    """Serves, or trains and answers requests until standard input ends."""
    spec = {"dim": 16, "ids": "zipf", **json.loads(sys.argv[1])}
    if spec.get("server"):
        set_role(spec, "PSERVER")
        _, fleet, _ = build(spec)
        fleet.init_server()
        fleet.run_server()
        return
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Paddle prints as it goes; only answers belong on standard output
    spec["port"] = free_port()
    set_role(spec, "TRAINER")
    serving = [sys.executable, str(Path(__file__).resolve()), json.dumps({**spec, "server": True})]
    scratch = tempfile.mkdtemp(prefix="paddle-bench-")
    os.chdir(scratch)  # Paddle leaves files where it runs
    server = subprocess.Popen(serving, stdin=subprocess.DEVNULL)
    atexit.register(server.kill)
    trainer = Trainer(spec)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": trainer.run(json.loads(line)["steps"])}), file=answers, flush=True)
    server.kill()
    shutil.rmtree(scratch, ignore_errors=True)
    os._exit(0)  # its threads do not end by themselves


if __name__ == "__main__":
    main()
