"""Steps of PyTorch's fused Adam without what surrounds its kernel, which takes longer than the kernel for small layers.

The optimizer stays PyTorch's own: its groups and state are read at every step, so that whoever changes them (a
schedule, a checkpoint) is heard, and results are the same to the bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Adam, AdamW, Optimizer

RARE = ("amsgrad", "maximize", "capturable", "differentiable")
"""Options of groups that are left to PyTorch."""


def step(optimizer: Optimizer) -> None:
    """A step of any optimizer; of a fused Adam or AdamW on the cores by its kernel alone, once its state is made."""
    if _is_plain(optimizer) and all(_is_ready(group, optimizer) for group in optimizer.param_groups):
        for group in optimizer.param_groups:
            _step(group, optimizer)
    else:
        optimizer.step()


def _is_plain(optimizer: Optimizer) -> bool:
    hooked = optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks
    return type(optimizer) in (Adam, AdamW) and not hooked and "step" not in vars(optimizer)


def _is_ready(group: dict[str, Any], optimizer: Optimizer) -> bool:
    if not group["fused"] or isinstance(group["lr"], torch.Tensor) or any(group[option] for option in RARE):
        return False
    return all(
        parameter.is_cpu
        and parameter.dtype == torch.float32
        and parameter.grad is not None
        and parameter.grad.layout == torch.strided
        and optimizer.state[parameter]
        for parameter in group["params"]
    )


@torch.no_grad()
def _step(group: dict[str, Any], optimizer: Optimizer) -> None:
    parameters = group["params"]
    states = [optimizer.state[parameter] for parameter in parameters]
    steps = [state["step"] for state in states]
    torch._foreach_add_(steps, 1)
    beta1, beta2 = group["betas"]
    decoupled = isinstance(optimizer, AdamW) or group.get("decoupled_weight_decay")
    kernel = torch._fused_adamw_ if decoupled else torch._fused_adam_
    kernel(
        parameters, [parameter.grad for parameter in parameters], [state["exp_avg"] for state in states],
        [state["exp_avg_sq"] for state in states], [], steps, lr=group["lr"], beta1=beta1, beta2=beta2,
        weight_decay=group["weight_decay"], eps=group["eps"], amsgrad=False, maximize=False,
    )  # fmt: skip
