"""Changes in place: harmless in a module, but layers may not change what others read."""

from __future__ import annotations

import copy
import operator
from typing import Any

from torch import Tensor, fx

from heterps.errors import InvalidInput
from heterps.models.tracing.where import REMEDY, at_call, call


def settle_changes_in_place(root: fx.GraphModule) -> None:
    """Turns them into calls that give a new tensor; an `InvalidInput` where the changed one is read again.

    `x += y` is not among them: torch.fx traces it as x = x + y.
    """
    order = {node: number for number, node in enumerate(root.graph.nodes)}
    for node in root.graph.nodes:
        if not _in_place(root, node):
            continue
        changed = node.args[0] if node.args else None
        read_again = isinstance(changed, fx.Node) and any(order[user] > order[node] for user in changed.users)
        if read_again or not node.users:
            raise InvalidInput(f"{call(node)} changes a tensor in place that is read again{at_call(node)}; {REMEDY}")
        if node.op == "call_method" and hasattr(Tensor, str(node.target)[:-1]):
            node.target = str(node.target)[:-1]
        elif "inplace" in node.kwargs:
            node.update_kwarg("inplace", False)
        elif node.op == "call_module":
            _replace(root, str(node.target))


def _replace(root: fx.GraphModule, target: str) -> None:
    """Puts a copy that makes new tensors in the place of a module without weights, such as nn.ReLU(inplace=True)."""
    plain: Any = copy.copy(root.get_submodule(target))
    plain.inplace = False
    parent, _, name = target.rpartition(".")
    setattr(root.get_submodule(parent), name, plain)  # the root's own containers, not the user's


def _in_place(root: fx.GraphModule, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    suffix = name.endswith("_") and not name.endswith("__") and node.target not in (operator.and_, operator.or_)
    return suffix or node.kwargs.get("inplace") is True
