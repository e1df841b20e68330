"""What a sparse table is made of: its shape, its optimizer and the life cycle of its rows."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heterps.errors import InvalidInput, did_you_mean
from heterps.store.checks import MOST_32_BITS, float32, limit, number, share, whole

MOST_NAME = 256
"""Characters of a table's name: as many as the wire takes."""

EPS = {"adagrad": 1e-10, "rowwise-adagrad": 1e-8, "adam": 1e-8}
"""Defaults of `eps`: torch's for adagrad and adam, FBGEMM's for row-wise adagrad."""

STATE_FLOATS = {
    "sgd": (0, 0),
    "momentum": (1, 0),
    "adagrad": (1, 0),
    "rowwise-adagrad": (0, 1),
    "adam": (2, 1),
    "ftrl": (2, 0),
}
"""Floats of optimizer state beside each row, by optimizer: so many times dim, and so many more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimizer:
    """How a row follows its gradient. A row's gradient is the sum over its duplicates in a push.

    It is clipped first (`clip_value` each element, then `clip_norm` the row's length), then `weight_decay · row` is
    added, then the rule of `name` is applied:

    - `sgd`: w -= lr·g
    - `momentum`: v = momentum·v + g; w -= lr·v
    - `adagrad`: h += g²; w -= lr·g / (√h + eps)
    - `rowwise-adagrad`: h += mean(g²), one h a row; w -= lr·g / (√h + eps)
    - `adam`: torch's rule, with t the number of times this row was updated, so that sharding changes nothing;
      rows without a gradient stay as they are
    - `ftrl`: σ = (√(n+g²) - √n)/lr; z += g - σ·w; n += g²; w = 0 if |z| ≤ l1, else
      (sign(z)·l1 - z) / ((beta + √n)/lr + l2)
    """

    name: str = "rowwise-adagrad"
    lr: float = 0.01
    eps: float | None = None
    """Added to roots; None: the optimizer's usual one (see `EPS`)."""
    initial_accumulator: float = 0.0
    """First value of h (adagrad, rowwise-adagrad) and n (ftrl)."""
    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    beta: float = 1.0
    """FTRL's smoothing of the learning rate."""
    l1: float = 0.0
    l2: float = 0.0
    weight_decay: float = 0.0
    clip_value: float = math.inf
    clip_norm: float = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or self.name not in STATE_FLOATS:
            hint = did_you_mean(str(self.name), STATE_FLOATS)
            raise InvalidInput(f"optimizer: one of {', '.join(STATE_FLOATS)}, not {self.name!r}.{hint}")
        for name in ("lr", "initial_accumulator", "beta", "l1", "l2", "weight_decay"):
            float32(name, getattr(self, name))
        for name in ("momentum", "beta1", "beta2"):
            share(f"optimizer: {name}", getattr(self, name))
        for name in ("clip_value", "clip_norm"):
            limit(f"optimizer: {name}", getattr(self, name))
        if self.name == "ftrl" and float32("lr", self.lr) == 0:
            raise InvalidInput(f"optimizer: ftrl divides by lr, which must be positive, not {self.lr!r}")
        if self.eps is None:
            object.__setattr__(self, "eps", EPS.get(self.name, 0.0))
        float32("eps", self.eps)

    def state_floats(self, dim: int) -> int:
        """Floats of state beside a row of `dim` floats."""
        per_float, more = STATE_FLOATS[self.name]
        return per_float * dim + more


@dataclass(frozen=True, kw_only=True, slots=True)
class TableConfig:
    """Everything that decides what a table holds after a sequence of pulls and pushes (threads and shards do not)."""

    dim: int
    name: str = "table"
    optimizer: Optimizer = field(default_factory=Optimizer)
    seed: int = 0
    """First values are a pure function of (seed, name, id)."""
    init_scale: float = 0.01
    """First values are uniform in [-init_scale, init_scale)."""
    admit_after: int = 1
    """Sights (occurrences in creating pulls) after which an id gets a row; until then it reads as zeros, and pushes
    to it are dropped. 1: at first sight."""
    expire_steps: int = 0
    """A row unseen for more than so many steps (pushes) counts as absent; 0: never."""
    expire_seconds: float = 0.0
    """The same by time; 0: never."""
    counts: bool = False
    """Keep each row's sights and when it was last seen (12 bytes a row). Implied by the three above."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or len(self.name) > MOST_NAME:
            raise InvalidInput(f"table: name is a string of at most {MOST_NAME} characters, not {self.name!r:.80}")
        table = f"table {self.name!r}: "
        if not isinstance(self.optimizer, Optimizer):
            raise InvalidInput(f"{table}optimizer is an Optimizer, not {self.optimizer!r}")
        if not isinstance(self.counts, bool):
            raise InvalidInput(f"{table}counts is True or False, not {self.counts!r}")
        if not isinstance(self.seed, int) or not -(2**63) <= self.seed < 2**64:
            raise InvalidInput(f"{table}seed is a whole number of 64 bits, not {self.seed!r}")
        whole(f"{table}dim", self.dim, least=1, most=65_536)
        whole(f"{table}admit_after", self.admit_after, least=1)
        whole(f"{table}expire_steps", self.expire_steps)
        number(f"{table}expire_seconds", self.expire_seconds, most=MOST_32_BITS)
        float32(f"{table}init_scale", self.init_scale)

    @property
    def tracks(self) -> bool:
        """True if rows carry counts and the time they were last seen."""
        return self.counts or self.admit_after > 1 or self.expire_steps > 0 or self.expire_seconds > 0

    @property
    def state_floats(self) -> int:
        """Floats of optimizer state beside each row."""
        return self.optimizer.state_floats(self.dim)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, for files and the wire; infinities are left out."""
        return _without_infinities(dataclasses.asdict(self))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TableConfig:
        """The inverse of `to_dict`; an unknown or missing key is an `InvalidInput`."""
        try:
            return cls(**{**data, "optimizer": Optimizer(**data.get("optimizer", {}))})
        except TypeError as error:
            raise InvalidInput(f"table configuration: {error}") from None


def _without_infinities(data: dict[str, Any]) -> dict[str, Any]:
    plain = {k: _without_infinities(v) if isinstance(v, dict) else v for k, v in data.items()}
    return {k: v for k, v in plain.items() if v != math.inf}
