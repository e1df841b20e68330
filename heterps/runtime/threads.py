"""Threads of PyTorch's operations on the cores: matrix products use all of a stage's, simpler ones only if it pays.

To wake a thread takes longer than a short operation: with passive waiting, one thread takes 262,144 elements through a
ReLU's gradient in 39 µs, and two take 93 (measured). Two are faster from about a million on; PyTorch shares out from
32,768 on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from torch import nn

from heterps.models import Loss

SMALL = 1 << 19
"""Elements of a tensor up to which one thread is as fast for simple operations."""
_PLAIN = (nn.Linear, nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Identity, nn.Dropout, nn.Sequential, Loss)
"""Modules that are matrix products and simple operations on what these give."""


def threads_for(layers: Iterable[object], samples: int, threads: int) -> int:
    """Threads for the simple operations of layers that have `threads` for their products.

    One if these modules are known, and none of their tensors is large for so many samples.
    """
    modules = [module for layer in layers for module in (layer.modules() if isinstance(layer, nn.Module) else [layer])]
    if not all(isinstance(module, _PLAIN) for module in modules):
        return threads
    linear = [module for module in modules if isinstance(module, nn.Linear)]
    largest = max((max(module.weight.numel(), samples * module.out_features) for module in linear), default=0)
    return 1 if largest <= SMALL else threads


def use_for_simple_operations(threads: int) -> None:
    """Sets the threads of this thread's simple operations; its matrix products keep those they have.

    `torch.set_num_threads` sets both. Does nothing where products share OpenMP's setting with the rest.
    """
    openmp = _openmp()
    if openmp is not None:
        torch.get_num_threads()  # PyTorch sets OpenMP's number when a thread first asks for it: not after this
        openmp.omp_set_num_threads(threads)


@contextmanager
def omp_threads(threads: int) -> Iterator[None]:
    """Lets OpenMP use so many threads in between, for what has no setting of its own."""
    openmp = _openmp()
    before = openmp.omp_get_max_threads() if openmp is not None else threads
    if before == threads or openmp is None:
        yield
        return
    openmp.omp_set_num_threads(threads)
    try:
        yield
    finally:
        openmp.omp_set_num_threads(before)


@cache
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP that PyTorch has loaded, if its products have a setting of their own (MKL)."""
    if not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return None
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    loaded = {line.split()[-1] for line in lines if "libgomp" in line}
    own = [path for path in loaded if "torch" in path] or list(loaded)
    return ctypes.CDLL(own[0]) if len(own) == 1 else None
