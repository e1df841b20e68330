"""A process that has imported what commands need, and forks one for each: python -m tests.cli.nursery.

Reads an order a line as JSON, and answers with the exit status as `subprocess` has it. What it forks is a process of
its own, with its own directory, environment, files and end; it only lacks the seconds of importing torch.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from importlib import import_module
from typing import Any

LIMIT_S = 300
NEEDED = (
    "torch._dynamo", "optuna", "matplotlib.pyplot", "pyarrow.parquet", "tensorboard.summary.writer.event_file_writer",
    "heterps.api", "heterps.cli.main", "heterps.cli.summary", "heterps.profile", "heterps.report", "heterps.runtime",
)  # fmt: skip


def work(order: dict[str, Any]) -> None:
    """The command, as the interpreter would start it."""
    signal.alarm(LIMIT_S)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["environment"])
    for descriptor, path in enumerate((os.devnull, order["stdout"], order["stderr"])):
        file = os.open(path, os.O_RDWR)
        os.dup2(file, descriptor)
        os.close(file)
    sys.argv[1:], sys.path[0] = order["args"], order["cwd"]
    for name in order["imports"]:
        import_module(name)
    from heterps.cli.main import main

    main()


def serve() -> None:
    """Takes orders until there are no more."""
    for name in NEEDED:
        import_module(name)
    gc.freeze()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            work(json.loads(line))
            sys.exit()
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    serve()
