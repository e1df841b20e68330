"""heterps trains sparse-feature deep networks on the cheapest mix of CPUs and GPUs that meets a throughput goal."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

# Threads of OpenMP that wait must sleep: stages, readers and tables share the cores. Read when torch is imported, so
# import heterps first; a user's own setting stays.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")

if TYPE_CHECKING:
    from heterps.api import compare
    from heterps.errors import HeterPSError, Infeasible, InvalidInput
    from heterps.job import Job
    from heterps.models import BCE, Bags, BCEWithLogits, Chain, Hinge, Layer, Loss, SparseEmbedding
    from heterps.plan import Cluster, Plan, Profile
    from heterps.runtime import Checkpoints, EarlyStop, Result, evaluate
    from heterps.runtime.export import export
    from heterps.runtime.train import train

__all__ = ["BCE", "BCEWithLogits", "Bags", "Chain", "Checkpoints", "Cluster", "EarlyStop", "HeterPSError", "Hinge",
           "Infeasible", "InvalidInput", "Job", "Layer", "Loss", "Plan", "Profile", "Result", "SparseEmbedding",
           "compare", "evaluate", "export", "plan", "profile", "train"]  # fmt: skip
__version__ = "0.1.0"

_NAMES = {
    "heterps.api": ("compare",),
    "heterps.errors": ("HeterPSError", "Infeasible", "InvalidInput"),
    "heterps.job": ("Job",),
    "heterps.models": ("BCE", "BCEWithLogits", "Bags", "Chain", "Hinge", "Layer", "Loss", "SparseEmbedding"),
    "heterps.plan": ("Cluster", "Plan", "Profile"),
    "heterps.runtime": ("Checkpoints", "EarlyStop", "Result", "evaluate", "train"),
    "heterps.runtime.export": ("export",),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}
_PARTS = ("catalog", "data", "models", "plan", "profile", "ps", "runtime", "store", "telemetry")
"""Parts of the package that need no import of their own; `plan` and `profile` are also the functions of that name."""


def __getattr__(name: str) -> Any:
    """Imports what is asked for, so that `import heterps` and `heterps --help` stay fast."""
    if name in _PARTS:
        return import_module(f"heterps.{name}")
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'heterps' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is, also before it is imported: for completion."""
    return sorted({*globals(), *_WHERE, *_PARTS})
