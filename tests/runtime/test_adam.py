"""Steps of Adam by its kernel alone, against PyTorch's own steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from heterps.runtime import adam

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, fused=True),
    "with decay": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=0.1, fused=True),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.8, 0.99), fused=True),
    "groups": lambda model: torch.optim.Adam(
        [{"params": [p], "lr": 0.1 / (1 + i)} for i, p in enumerate(model.parameters())], eps=1e-3, fused=True
    ),
}
LEFT: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "not fused": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), lr=0.01, amsgrad=True, fused=True),
    "maximize": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01, maximize=True, fused=True),
    "another": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.01),
}


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 1))


def run(make: Callable[[nn.Module], torch.optim.Optimizer], step: Callable[[Any], None]) -> list[torch.Tensor]:
    """Weights after steps with a schedule, a gradient that is missing once, and a state that is loaded halfway."""
    model = model_of()
    optimizer = make(model)
    generator = torch.Generator().manual_seed(1)
    for number in range(12):
        optimizer.zero_grad()
        model(torch.randn(8, 5, generator=generator)).square().mean().backward()
        if number == 4:
            next(model.parameters()).grad = None
        if number == 7:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for group in optimizer.param_groups:
            group["lr"] *= 0.9
        step(optimizer)
    state = [value for entry in optimizer.state.values() for value in entry.values() if torch.is_tensor(value)]
    return [parameter.detach().clone() for parameter in model.parameters()] + state


@pytest.mark.parametrize("make", [*OPTIMIZERS.values(), *LEFT.values()], ids=[*OPTIMIZERS, *LEFT])
def test_steps_are_pytorchs_to_the_bit(make: Callable[[nn.Module], torch.optim.Optimizer]) -> None:
    expected = run(make, lambda optimizer: optimizer.step())
    assert all(map(torch.equal, run(make, adam.step), expected))


@pytest.mark.parametrize("name", [*OPTIMIZERS, *LEFT])
def test_only_plain_ones_skip_pytorchs_way(name: str) -> None:
    model = model_of()
    optimizer = {**OPTIMIZERS, **LEFT}[name](model)
    for number in range(3):
        model(torch.ones(2, 5)).sum().backward()
        with mock.patch.object(type(optimizer), "step", autospec=True, side_effect=type(optimizer).step) as usual:
            adam.step(optimizer)
        assert bool(usual.call_count) == (number == 0 or name in LEFT)


def test_hooks_are_called() -> None:
    model = model_of()
    optimizer = OPTIMIZERS["adam"](model)
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    for _ in range(3):
        model(torch.ones(2, 5)).sum().backward()
        adam.step(optimizer)
    assert len(called) == 3
