"""Modules that are also the function of their name.

`heterps.plan` is a module (of `Profile`, `Cluster`, `Plan`) and a step (`heterps.plan(profile, cluster, ...)`). The
function lives above the module in the import order, so it is named here and imported when it is first called.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module, _, function = self.__dict__["__heterps_call__"].partition(":")
        return getattr(import_module(module), function)(*args, **kwargs)


def make_callable(module: str, target: str) -> None:
    """Makes the imported `module` call `target` (`"package.module:function"`) when it is called."""
    sys.modules[module].__dict__["__heterps_call__"] = target
    sys.modules[module].__class__ = _CallableModule
