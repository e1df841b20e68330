"""A run in a process of its own, as a user would start it: python -m tests.cluster.driver SPEC.json."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from tests.cluster.counting import factory, model


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What to run, and where."""

    address: str
    checkpoints: str
    steps: int
    gate: str | None = None
    replicas: tuple[int, ...] = (2, 1)
    shards: int = 2
    every_steps: int = 10
    micro_batches: int = 4
    frozen_s: float = 6.0
    tries: int = 8

    def save(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def load(cls, path: Path) -> Spec:
        given = json.loads(path.read_text())
        return cls(**{**given, "replicas": tuple(given["replicas"])})


def run(spec: Spec) -> list[float]:
    """The losses of the run."""
    import logging

    from heterps.runtime import Checkpoints, Settings
    from heterps.runtime.cluster.engine import train_on_ray
    from heterps.runtime.cluster.policy import Limits
    from tests.runtime.plain import sgd
    from tests.runtime.plans import make_plan

    logging.basicConfig(level=logging.WARNING)
    chain = model()
    cuts = (2,) if len(spec.replicas) == 2 else ()
    result = train_on_ray(
        chain, partial(factory, spec.gate, spec.steps), make_plan(chain, cuts, units=list(spec.replicas)),
        Settings(
            steps=spec.steps, micro_batches=spec.micro_batches, optimizer=sgd,
            checkpoints=Checkpoints(path=spec.checkpoints, every_steps=spec.every_steps),
        ),
        address=spec.address, replicas=list(spec.replicas), shards=spec.shards, bring_back=False,
        limits=Limits(frozen_s=spec.frozen_s, tries=spec.tries, pause_s=0.2),
    )  # fmt: skip
    return result.losses


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.with_suffix(".result").write_text(json.dumps(run(Spec.load(where))))
