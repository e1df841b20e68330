"""The store's row optimizers as tensor operations, for rows that lie in a GPU's memory.

The formulas are those of `heterps.store.Optimizer`, and state has the layout of the native table, so that rows move
between the two as they are. Nothing here waits for the device, so that it can be part of a CUDA graph.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from heterps.store import Optimizer


def update(rule: Optimizer, lr: Tensor, rows: Tensor, state: Tensor, grads: Tensor) -> tuple[Tensor, Tensor]:
    """New rows [U, dim] and state [U, state floats] for gradients [U, dim]; `lr` is a tensor of one number."""
    grads = _conditioned(rule, rows, grads)
    dim, eps = rows.shape[1], rule.eps or 0.0
    if rule.name == "sgd":
        return rows - lr * grads, state
    if rule.name == "momentum":
        velocity = state * rule.momentum + grads
        return rows - lr * velocity, velocity
    if rule.name == "adagrad":
        sums = state + grads * grads
        return rows - lr * grads / (sums.sqrt() + eps), sums
    if rule.name == "rowwise-adagrad":
        sums = state + grads.square().mean(dim=1, keepdim=True)
        return rows - lr / (sums.sqrt() + eps) * grads, sums
    if rule.name == "adam":
        age, first, second = state[:, :1] + 1, state[:, 1 : 1 + dim], state[:, 1 + dim :]
        first = first * rule.beta1 + grads * (1 - rule.beta1)
        second = second * rule.beta2 + grads * grads * (1 - rule.beta2)
        bias1 = 1 - torch.exp(age.double() * math.log(rule.beta1)) if rule.beta1 > 0 else torch.ones_like(age)
        bias2 = 1 - torch.exp(age.double() * math.log(rule.beta2)) if rule.beta2 > 0 else torch.ones_like(age)
        step = (lr / bias1).to(rows.dtype)
        root = second.sqrt() * bias2.rsqrt().to(rows.dtype) + eps
        return rows - step * first / root, torch.cat([age, first, second], dim=1)
    sums, squares = state[:, :dim], state[:, dim:]
    grown = squares + grads * grads
    root = grown.sqrt()
    sums = sums + grads - (root - squares.sqrt()) / lr * rows
    size = sums.abs() - rule.l1
    fitted = -sums.sign() * size / ((rule.beta + root) / lr + rule.l2)
    return torch.where(size <= 0, torch.zeros_like(rows), fitted), torch.cat([sums, grown], dim=1)


def _conditioned(rule: Optimizer, rows: Tensor, grads: Tensor) -> Tensor:
    """Clipped, then with weight decay."""
    if math.isfinite(rule.clip_value):
        grads = grads.clamp(-rule.clip_value, rule.clip_value)
    if math.isfinite(rule.clip_norm):
        norm = grads.double().square().sum(dim=1, keepdim=True).sqrt()  # the squares of a large float are no float
        scaled = (grads * (rule.clip_norm / norm)).to(grads.dtype)
        grads = torch.where(norm > rule.clip_norm, scaled, grads)
    return grads + rule.weight_decay * rows if rule.weight_decay > 0 else grads
