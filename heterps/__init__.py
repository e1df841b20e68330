"""heterps trains sparse-feature deep networks on the cheapest mix of CPUs and GPUs that meets a throughput goal."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heterps.api import compare
    from heterps.errors import HeterPSError, Infeasible, InvalidInput
    from heterps.plan import Cluster, Plan, Profile

__all__ = ["Cluster", "HeterPSError", "Infeasible", "InvalidInput", "Plan", "Profile", "compare", "plan"]
__version__ = "0.1.0"

_WHERE = {
    "Cluster": "heterps.plan",
    "HeterPSError": "heterps.errors",
    "Infeasible": "heterps.errors",
    "InvalidInput": "heterps.errors",
    "Plan": "heterps.plan",
    "Profile": "heterps.plan",
    "compare": "heterps.api",
}


def __getattr__(name: str) -> Any:
    """Imports what is asked for, so that `import heterps` and `heterps --help` stay fast."""
    if name == "plan":
        return import_module("heterps.plan")  # a module that is also the function of that name
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'heterps' has no attribute {name!r}")
