"""Threads of PyTorch's operations on the cores: matrix products use all of a stage's, simpler ones only if it pays.

To wake a thread takes longer than a short operation: with passive waiting, one thread takes 262,144 elements through a
ReLU's gradient in 39 µs, and two take 93 (measured). Two are faster from about a million on; PyTorch shares out from
32,768 on.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import torch
from torch import nn

from heterps.models import Loss

SMALL = 1 << 19
"""Elements of a tensor up to which one thread is as fast for simple operations."""
_PLAIN = (nn.Linear, nn.ReLU, nn.LeakyReLU, nn.Sigmoid, nn.Tanh, nn.Identity, nn.Dropout, nn.Sequential, Loss)
"""Modules that are matrix products and simple operations on what these give."""


def are_small(modules: Iterable[nn.Module], samples: int) -> bool:
    """True if simple operations of these modules have few elements for so many samples; False if nobody knows."""
    leaves = list(modules)
    widths = [module.out_features for module in leaves if isinstance(module, nn.Linear)]
    sizes = [parameter.numel() for module in leaves for parameter in module.parameters()]
    return all(isinstance(module, _PLAIN) for module in leaves) and (
        max([*sizes, *(samples * width for width in widths)], default=0) <= SMALL
    )


def one_for_simple_operations() -> None:
    """From now on this thread does simple operations alone; its matrix products keep the threads they have.

    Undone by `torch.set_num_threads`. Does nothing where products share OpenMP's setting with the rest.
    """
    openmp = _openmp()
    if openmp is not None and torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        torch.get_num_threads()  # PyTorch sets OpenMP's number when a thread first asks for it: not after this
        openmp.omp_set_num_threads(1)


@cache
def _openmp() -> ctypes.CDLL | None:
    """The OpenMP that PyTorch has loaded."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text().splitlines() if maps.exists() else []
    loaded = {line.split()[-1] for line in lines if "libgomp" in line}
    own = [path for path in loaded if "torch" in path] or list(loaded)
    return ctypes.CDLL(own[0]) if len(own) == 1 else None
