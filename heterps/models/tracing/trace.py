"""Symbolic tracing of a module, once in training and once in evaluation, and its values for an example."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from heterps.errors import InvalidInput, did_you_mean
from heterps.models.batch import Bags, Value
from heterps.models.tracing.inplace import settle_changes_in_place
from heterps.models.tracing.where import LINE, REMEDY, at, at_call, call, current_line, raising_line, reason

Leaf: TypeAlias = type[nn.Module] | nn.Module
Leaves: TypeAlias = Sequence[Leaf | str]

OFFSETS = "_offsets"
"""A forward gets the offsets of the bags "tags" as "tags_offsets", or as "offsets" if they are the only ones. These are
where bags start; a model with an nn.EmbeddingBag(include_last_offset=True) gets the end of the last as well."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A module's calls as a graph, and what each gave for the example."""

    model: nn.Module
    root: fx.GraphModule
    """Holds the graph, and what it refers to: the model's own submodules and weights."""
    arguments: Callable[[Mapping[str, Any]], dict[str, Any]]
    """Keyword arguments of the model's forward, out of values by name (offsets among them)."""
    example: dict[str, Tensor]
    """The example as forward takes it: bags as ids and offsets."""
    values: dict[fx.Node, Any]
    leaves: tuple[Leaf, ...]

    @property
    def graph(self) -> fx.Graph:
        """All calls, in order."""
        return self.root.graph

    def module(self, node: fx.Node) -> nn.Module | None:
        """The submodule that a node calls, if it calls one."""
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def embedding(self, node: fx.Node) -> nn.Embedding | nn.EmbeddingBag | None:
        """The module of an embedding whose rows become a table: any that is not among the leaves."""
        module = self.module(node)
        if not _is_embedding(module) or _chosen(module, self.leaves):
            return None
        assert isinstance(module, nn.Embedding | nn.EmbeddingBag)
        return module


def trace(model: nn.Module, example: Mapping[str, Value], leaves: Leaves) -> Traced:
    """Traces a module; what cannot be traced is an `InvalidInput` that names the line."""
    whole, arguments, entries = _found(model, leaves), _arguments(model, example), _flattened(model, example)
    root = _traced(model, list(entries), arguments, whole, training=True)
    evaluated = _traced(model, list(entries), arguments, whole, training=False)
    _settle_modes(model, root, evaluated)
    settle_changes_in_place(root)
    root.graph.eliminate_dead_code()
    root.recompile()
    with evaluating(root), torch.no_grad():
        runner = _Runner(root, garbage_collect_values=False)
        runner.extra_traceback = False  # of the graph, which is not the user's
        runner.run(*entries.values())
    traced = Traced(model, root, arguments, entries, dict(runner.env), whole)
    read_sizes_of_ids(traced)
    return traced


def read_sizes_of_ids(traced: Traced) -> None:
    """Reads sizes of rows off their ids, which come with the batch: rows need not be kept for them."""
    for node in list(traced.graph.nodes):
        rows, axis = _size_of(node)
        module = traced.embedding(rows) if rows is not None else None
        if rows is None or not isinstance(module, nn.Embedding) or not isinstance(ids := rows.args[0], fx.Node):
            continue
        axis %= traced.values[rows].ndim
        with traced.graph.inserting_before(node):
            if axis < traced.values[ids].ndim:
                size = traced.graph.call_method("size", (ids, axis))
                traced.values[size] = traced.values[node]
                node.replace_all_uses_with(size)
    traced.graph.eliminate_dead_code()
    traced.root.recompile()


def _size_of(node: fx.Node) -> tuple[fx.Node | None, int]:
    """The node and the axis of `x.size(axis)` and `x.shape[axis]`; None for any other call."""
    of, axis = (*node.args, None, None)[:2]
    if node.target is operator.getitem and isinstance(of, fx.Node) and of.target is getattr and of.args[1] == "shape":
        of = of.args[0]
    elif not (node.op == "call_method" and node.target == "size"):
        return None, 0
    return (of, axis) if isinstance(of, fx.Node) and isinstance(axis, int) else (None, 0)


def _flattened(model: nn.Module, example: Mapping[str, Value]) -> dict[str, Tensor]:
    """The example with bags as a tensor of ids and one of offsets."""
    ends = any(getattr(module, "include_last_offset", False) for module in model.modules())
    flat: dict[str, Tensor] = {}
    for name, value in example.items():
        flat[name] = value.ids if isinstance(value, Bags) else value
        if isinstance(value, Bags):
            flat[name + OFFSETS] = value.offsets if ends else value.offsets[:-1]
    return flat


@contextmanager
def evaluating(model: nn.Module, *, training: bool = False) -> Iterator[None]:
    """Puts a module into evaluation (or training) and back into what it was, part by part."""
    before = {module: module.training for module in model.modules()}
    try:
        model.train(training)
        yield
    finally:
        for module, mode in before.items():
            module.training = mode


def _arguments(model: nn.Module, example: Mapping[str, Value]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """How forward is called: entries of the batch as the parameters of their names, or the whole batch as one."""
    taken = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind in taken
    }
    entries = {name: name for name in _flattened(model, example)}
    bags = [name for name, value in example.items() if isinstance(value, Bags)]
    if len(bags) == 1:
        entries.setdefault("offsets", bags[0] + OFFSETS)
    missing = [name for name, needed in parameters.items() if needed and name not in entries]
    if missing and len(parameters) == 1:
        return lambda values: {missing[0]: {name: values[entry] for name, entry in entries.items()}}
    if missing:
        raise InvalidInput(
            f"{_class(model)}.forward takes {missing[0]!r}, which the example has not; it has "
            f"{', '.join(map(repr, entries))}.{did_you_mean(missing[0], entries)}"
        )
    return lambda values: {name: values[entries[name]] for name in parameters if name in entries}


def _is_embedding(module: object) -> bool:
    return getattr(type(module), "forward", None) in (nn.Embedding.forward, nn.EmbeddingBag.forward)


def _found(model: nn.Module, leaves: Leaves) -> tuple[Leaf, ...]:
    """The leaves with modules in the place of their names; an `InvalidInput` if the model has no such module."""
    parts = dict(model.named_modules(remove_duplicate=False))
    for leaf in leaves:
        if isinstance(leaf, str) and leaf not in parts:
            hint = did_you_mean(leaf, parts) or f" Among its modules: {', '.join(list(parts)[1:11])}"
            raise InvalidInput(f"leaves: {_class(model)} has no module {leaf!r}.{hint}")
        if isinstance(leaf, nn.Module) and leaf not in parts.values():
            raise InvalidInput(f"leaves: this {_class(leaf)} is no module of {_class(model)}; name it by its path")
    return tuple(parts[leaf] if isinstance(leaf, str) else leaf for leaf in leaves)


def _chosen(module: object, leaves: Sequence[Leaf]) -> bool:
    return any(isinstance(module, leaf) if isinstance(leaf, type) else leaf is module for leaf in leaves)


class _Tracer(fx.Tracer):
    def __init__(self, names: list[str], arguments: Callable[..., dict[str, Any]], leaves: Sequence[Leaf]) -> None:
        super().__init__()
        self._names, self._arguments, self._leaves = names, arguments, leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = _is_embedding(m) or _chosen(m, self._leaves)
        return whole or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Keeps the user's line, for messages."""
        node = super().create_node(*args, **kwargs)
        node.meta[LINE] = current_line()
        return node

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
        """The batch's entries as placeholders, handed to forward as `_arguments` says."""
        proxies = {name: self.create_proxy("placeholder", name, (), {}) for name in self._names}
        return lambda root: root_fn(root, **self._arguments(proxies)), [self.root]


class _Runner(fx.Interpreter):
    """Runs a graph; a call that fails on the example is an `InvalidInput`."""

    def run_node(self, n: fx.Node) -> Any:
        try:
            return super().run_node(n)
        except Exception as error:
            raise InvalidInput(
                f"{call(n)} fails on the example{at_call(n)} ({reason(error)}); does the module itself run on it? If "
                f"so, {REMEDY}"
            ) from error


def _traced(
    model: nn.Module,
    names: list[str],
    arguments: Callable[..., dict[str, Any]],
    leaves: Sequence[Leaf],
    *,
    training: bool,
) -> fx.GraphModule:
    before = set(vars(model))
    try:
        with evaluating(model, training=training):
            graph = _Tracer(names, arguments, leaves).trace(model)
        root = fx.GraphModule(model, graph, class_name=_class(model))
    except Exception as error:  # whatever the user's forward makes of a symbolic tensor
        raise InvalidInput(_explain(model, error)) from error
    finally:
        for constant in set(vars(model)) - before:  # tensors made in forward, which torch.fx leaves on the model
            delattr(model, constant)
    if any(constant.requires_grad for constant in root.buffers()):
        raise InvalidInput(
            f"{_class(model)} computes with weights that it does not take from its attributes, such as "
            f"self.parameters(), which tracing would freeze at their value of now; {REMEDY}"
        )
    return root


def _explain(model: nn.Module, error: Exception) -> str:
    """The user's line that stopped the trace."""
    where = at(raising_line(error))
    says = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, KeyError):
        says = f"nothing is called {says}; is it in the example?"
    return f"{_class(model)} cannot be cut into layers: its forward cannot be traced{where} ({says}); {REMEDY}"


def _class(model: nn.Module) -> str:
    return type(model).__name__


def _settle_modes(model: nn.Module, root: fx.GraphModule, evaluated: fx.GraphModule) -> None:
    """Makes one graph of both modes: `functional.dropout` becomes a module; any other difference is refused."""
    pairs = list(zip_longest(root.graph.nodes, evaluated.graph.nodes))
    different = [(node, other) for node, other in pairs if node is None or other is None or _call(node) != _call(other)]
    for node, other in different:
        if node is None or other is None or not _is_dropout(node) or not _is_dropout(other):
            first = other if node is None or node.op == "output" else node
            raise InvalidInput(
                f"{_class(model)} calls other things in training than in evaluation, first {call(first)}"
                f"{at_call(first)}; {REMEDY}"
            )
    for node, _ in different:
        name = f"{node.name}_module"
        root.add_submodule(name, nn.Dropout(node.kwargs["p"]))
        with root.graph.inserting_before(node):
            dropout = root.graph.call_module(name, node.args)
        node.replace_all_uses_with(dropout)
        root.graph.erase_node(node)


def _is_dropout(node: fx.Node) -> bool:
    return node.target is functional.dropout


def _call(node: fx.Node) -> tuple[str, ...]:
    return (node.op, str(node.target), str(node.args), str(node.kwargs))
