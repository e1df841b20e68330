"""Models by name: one of the zoo, or a function `package.module:function` that returns a chain or an `nn.Module`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heterps.errors import HeterPSError, InvalidInput
from heterps.models import zoo
from heterps.models.batch import Batch
from heterps.models.chain import Chain


def is_function(name: str) -> bool:
    """Whether a model's name is that of a function, not of a model of the zoo."""
    return ":" in name


def build_named(name: str, args: Mapping[str, Any], *, seed: int, example: Callable[[], Batch]) -> Chain:
    """The chain that a name and arguments stand for.

    Args:
        name: of the zoo, or `package.module:function`; modules in the working directory are found too.
        args: arguments of the model or the function.
        seed: of its weights; a zoo model's own `seed` goes before.
        example: gives a small batch; called only for a function that returns an ordinary module, to trace it with.

    Raises:
        InvalidInput: for a name or arguments that there is not, or a function that fails or returns something else.
    """
    if not is_function(name):
        return zoo.build(name, **{"seed": seed, **args})
    function = _find(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            made = function(**args)
        except HeterPSError:
            raise
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            raise InvalidInput(
                f"model {name!r} failed: {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
            ) from error
    if isinstance(made, Chain):
        return made
    if not isinstance(made, nn.Module):
        raise InvalidInput(f"model {name!r} must return a heterps.Chain or an nn.Module, not {type(made).__name__}")
    return Chain.from_module(made, example(), name=name.rpartition(":")[2])


def _find(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # a console script does not look there by itself
    try:
        found = getattr(import_module(module_name), function_name)
    except Exception as error:  # a module may raise anything when it is imported
        if isinstance(error, AttributeError) and module_name in sys.modules:
            raise InvalidInput(f"model {name!r}: module {module_name!r} has no {function_name!r}") from None
        raise InvalidInput(
            f"model {name!r} cannot be imported: {type(error).__name__}: {error}; it is written package.module:function"
        ) from error
    if not callable(found):
        raise InvalidInput(f"model {name!r} is a {type(found).__name__}, not a function")
    function: Callable[..., Any] = found
    return function
