"""Adam and AdamW in one kernel for all parameters of an optimizer.

PyTorch's fused kernel gives a block of threads 65,536 numbers, so that a few small layers keep most of a GPU idle. This
one works on the same optimizer and the same state, in smaller pieces; results are the same but for rounding.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from heterps.runtime.device.kernels import THREADS, compiled

SOURCE = """
struct Piece { float* weight; const float* grad; float* first; float* second; float* step; };

extern "C" __global__ void tick(const Piece* pieces, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) *pieces[i].step += 1.0f;
}

extern "C" __global__ void adam(const Piece* pieces, const long long* ends, int count, const float* lr_at, double beta1,
                                double beta2, double eps, double decay, int decoupled) {
  const long long t = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= ends[count - 1]) return;
  int which = 0;
  while (ends[which] <= t) ++which;
  const Piece piece = pieces[which];
  const long long i = which == 0 ? t : t - ends[which - 1];
  const float lr = *lr_at, step = *piece.step;
  float w = piece.weight[i], g = piece.grad[i];
  if (decoupled) {
    w -= lr * (float)decay * w;
  } else {
    g += (float)decay * w;
  }
  const float m = (float)beta1 * piece.first[i] + (float)(1.0 - beta1) * g;
  const float v = (float)beta2 * piece.second[i] + (float)(1.0 - beta2) * g * g;
  const float correction1 = (float)(1.0 - pow(beta1, (double)step));
  const float correction2 = sqrtf((float)(1.0 - pow(beta2, (double)step)));
  piece.first[i] = m;
  piece.second[i] = v;
  piece.weight[i] = w - lr / correction1 * m / (sqrtf(v) / correction2 + (float)eps);
}
"""


class FastAdam:
    """Steps an optimizer of `fits`, inside a graph; `connect` tells it where the gradients are."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._groups = [_Group(group, optimizer) for group in optimizer.param_groups if group["params"]]
        for name in ("tick", "adam"):
            compiled(SOURCE, name, torch.cuda.current_device())  # not while a graph is recorded

    @staticmethod
    def fits(optimizer: torch.optim.Optimizer | None) -> bool:
        """True for PyTorch's Adam and AdamW without their rarer options, all in float32."""
        if type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW) or torch.get_default_dtype() != torch.float32:
            return False
        assert optimizer is not None
        plain = all(not group["amsgrad"] and not group["maximize"] for group in optimizer.param_groups)
        return plain and all(
            parameter.dtype == torch.float32 and parameter.is_contiguous()
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def record(self) -> None:
        """Records a step of all parameters that have a gradient."""
        for group in self._groups:
            group.record()

    def connect(self) -> None:
        """Fills in the addresses that the recorded step reads: after recording, before it is replayed."""
        for group in self._groups:
            group.connect()


class _Group:
    def __init__(self, group: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
        self._group, self._optimizer = group, optimizer
        device = group["params"][0].device
        count = len(group["params"])
        self._pieces = torch.zeros(count, 5, dtype=torch.int64, device=device)
        self._ends = torch.zeros(count, dtype=torch.int64, device=device)
        lr = group["lr"]
        usable = isinstance(lr, Tensor) and lr.is_cuda and lr.dtype == torch.float32
        self._lr = lr if usable else torch.tensor(float(lr), device=device)

    def record(self) -> None:
        self._used = [parameter for parameter in self._group["params"] if parameter.grad is not None]
        count = len(self._used)
        if count == 0:
            return
        total = sum(parameter.numel() for parameter in self._used)
        beta1, beta2 = map(float, self._group["betas"])
        decoupled = isinstance(self._optimizer, torch.optim.AdamW) or bool(self._group.get("decoupled_weight_decay"))
        numbers = [beta1, beta2, float(self._group["eps"]), float(self._group["weight_decay"]), int(decoupled)]
        _launch("tick", count, self._pieces, count)
        _launch("adam", total, self._pieces, self._ends, count, self._lr, *numbers)

    def connect(self) -> None:
        rows = []
        for parameter in self._used:
            state = self._optimizer.state[parameter]
            tensors = (parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"], state["step"])
            rows.append([tensor.data_ptr() for tensor in tensors])
        if rows:
            self._pieces[: len(rows)] = torch.tensor(rows)
            self._ends[: len(rows)] = torch.tensor(list(accumulate(parameter.numel() for parameter in self._used)))


def _launch(name: str, threads: int, *args: Any) -> None:
    kernel = compiled(SOURCE, name, torch.cuda.current_device())
    kernel(grid=(-(-threads // THREADS), 1, 1), block=(THREADS, 1, 1), args=list(args))
