"""The CUDA kernels of a table, compiled for the GPU that is there when a run first needs them."""

from __future__ import annotations

import math
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from heterps.runtime.device import calls
from heterps.store import TableConfig

RULES = ("sgd", "momentum", "adagrad", "rowwise-adagrad", "adam", "ftrl")
THREADS = 256


def available() -> bool:
    """True if this PyTorch can compile kernels at run time, and steps be started by calls of CUDA's own."""
    compiles = hasattr(torch.cuda, "_compile_kernel") and torch.cuda.is_available() and torch.version.cuda is not None
    return compiles and calls.available()


class Kernels:
    """The kernels of one table's shape and optimizer."""

    def __init__(self, config: TableConfig, init_key: int) -> None:
        source = _macros(config, init_key) + files(__package__).joinpath("kernels.cu").read_text()
        names = ("begin", "find", "claim", "gather", "scatter", "update", "rehash")
        self._kernels = {name: compiled(source, name, torch.cuda.current_device()) for name in names}
        self.parts = config.dim // 4 if config.dim % 4 == 0 else config.dim
        """Threads that copy one row."""
        power = config.dim & (config.dim - 1) == 0
        self.lanes = config.dim // 4 if config.dim % 4 == 0 and power and config.dim <= 128 else 1
        """Threads that update one row."""

    def __call__(self, name: str, threads: int, *args: Any) -> None:
        """Starts a kernel with at least so many threads on the current stream; tensors go by address."""
        if threads > 0:
            self._kernels[name](grid=(-(-threads // THREADS), 1, 1), block=(THREADS, 1, 1), args=list(args))


@cache
def compiled(source: str, name: str, device: int) -> Any:
    """A kernel of a source, compiled once for the current device."""
    return torch.cuda._compile_kernel(source, name)


def _macros(config: TableConfig, init_key: int) -> str:
    rule = config.optimizer
    numbers = {
        "ACCUMULATOR": rule.initial_accumulator, "MOMENTUM_FACTOR": rule.momentum, "EPS": rule.eps, "BETA1": rule.beta1,
        "BETA2": rule.beta2, "BETA": rule.beta, "L1": rule.l1, "L2": rule.l2, "SCALE": config.init_scale,
    }  # fmt: skip
    if math.isfinite(rule.clip_value):
        numbers["CLIP_VALUE"] = rule.clip_value
    if math.isfinite(rule.clip_norm):
        numbers["CLIP_NORM"] = rule.clip_norm
    if rule.weight_decay > 0:
        numbers["DECAY"] = rule.weight_decay
    lines = [f"#define {name} {float(value or 0.0)!r}f" for name, value in numbers.items()]
    lines += [
        f"#define DIM {config.dim}", f"#define STATE {config.state_floats}", f"#define RULE {RULES.index(rule.name)}",
        f"#define KEY {init_key}ull",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
