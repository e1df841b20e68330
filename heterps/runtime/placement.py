"""From a plan and a chain to what runs where on this machine. Decides only; nothing is started here."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch

from heterps.errors import InvalidInput, did_you_mean
from heterps.models import Chain
from heterps.plan import Plan


class NotHere(InvalidInput):
    """A plan for hardware that this machine does not have."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage: layers `first` … `last` on one device, or on each of several."""

    number: int
    first: int
    last: int
    type: str
    """The plan's resource type."""
    units: int
    """As planned; `threads` is what this machine can give."""
    device: torch.device
    threads: int
    others: tuple[torch.device, ...] = ()
    """Further GPUs, each of which computes its share of the micro-batches."""

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """All of them."""
        return (self.device, *self.others)

    def __str__(self) -> str:
        return f"stage {self.number} · {self.type} × {self.units}"


def place(chain: Chain, plan: Plan | None, devices: Mapping[str, str] | None = None) -> tuple[StageSpec, ...]:
    """The stages of a plan on this machine; without a plan, one stage on the GPU if there is one, else on all cores.

    Args:
        chain: its layers are those of the plan, in order.
        plan: what to run.
        devices: resource type -> device of this machine (`cpu`, `cuda:1`), where it is not the plan's: to try a plan
            on a machine that lacks its hardware. Several are joined by +: `cuda:0+cuda:2`.

    A stage has as many GPUs as units, as far as this machine has them: those that no stage before it has, unless they
    are named. With fewer than planned there is a warning.
    """
    if plan is None:
        return (_default_stage(chain),)
    if len(plan.placement) != len(chain.layers):
        raise InvalidInput(
            f"the plan places {len(plan.placement)} layers of {plan.model!r}, the chain has {len(chain.layers)} "
            f"({', '.join(layer.name for layer in chain.layers)}); make a plan for this model"
        )
    for type_ in devices or {}:
        if type_ not in plan.types:
            raise InvalidInput(f"devices: the plan has no type {type_!r}.{did_you_mean(type_, plan.types)}")
    stages: list[StageSpec] = []
    for number, stage in enumerate(plan.stages):
        taken = {device for other in stages for device in other.devices}
        named = (devices or {}).get(stage.type, plan.types[stage.type].device)
        first, *others = _devices(stage.type, named, stage.units, taken)
        if first.type == "cuda" and stage.units > 1 + len(others):
            warnings.warn(
                f"the plan gives stage {number} {stage.units} GPUs ({stage.type}); it runs on {1 + len(others)} here",
                stacklevel=2,
            )
        threads = min(stage.units, cores()) if first.type == "cpu" else 1
        stages.append(
            StageSpec(number, stage.first, stage.last, stage.type, stage.units, first, threads, tuple(others))
        )
    _refuse_shared_parameters(chain, stages)
    return tuple(stages)


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _default_stage(chain: Chain) -> StageSpec:
    last = len(chain.layers) - 1
    if torch.cuda.is_available():
        return StageSpec(0, 0, last, "gpu", 1, torch.device("cuda", 0), 1)
    return StageSpec(0, 0, last, "cpu", cores(), torch.device("cpu"), cores())


def _devices(type_: str, named: str, units: int, taken: Set[torch.device]) -> list[torch.device]:
    """Where a stage runs: on the devices that are named, or on GPUs that nobody has taken; never more than units."""
    found = [_device(type_, name) for name in named.split("+")]
    if len({device.type for device in found}) > 1:
        raise InvalidInput(f"device of {type_!r}: cores or GPUs, not both ({named})")
    if named == "cuda":
        gpus = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
        found = [gpu for gpu in gpus if gpu not in taken] or gpus
    return found[:units]


def _device(type_: str, name: str) -> torch.device:
    refused = InvalidInput(f"device of {type_!r}: cpu, cuda, cuda:N, or several as cuda:0+cuda:1, not {name!r}")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise refused from None
    if device.type == "cuda":
        there = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= there:
            raise NotHere(
                f"the plan runs layers on {type_!r} ({name}), and this machine has {there} such GPUs; rent it, plan "
                f"for a cluster without it, or try the plan on other hardware (--devices {type_}=cpu)"
            )
        return torch.device("cuda", device.index or 0)
    if device.type != "cpu":
        raise refused
    return device


def _refuse_shared_parameters(chain: Chain, stages: list[StageSpec]) -> None:
    """A parameter has one home: layers that share one must lie in one stage."""
    home: dict[int, tuple[int, str]] = {}
    for stage in stages:
        for layer in chain.layers[stage.first : stage.last + 1]:
            for parameter in layer.parameters():
                number, other = home.setdefault(id(parameter), (stage.number, layer.name))
                if number != stage.number:
                    raise InvalidInput(
                        f"layers {other!r} and {layer.name!r} share a parameter, and the plan puts them into different "
                        "stages; place them on the same type, with all layers between them"
                    )
