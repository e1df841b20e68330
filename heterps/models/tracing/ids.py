"""Embedding modules as sparse layers: their options, and the graph that makes their ids out of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn

from heterps.errors import InvalidInput
from heterps.models.batch import Bags, Value
from heterps.models.layer import SparseEmbedding
from heterps.models.tracing.groups import Grouping
from heterps.models.tracing.trace import OFFSETS, Traced


class EqualBags:
    """Makes the ids [B, n] of what is read, and a bag of each sample's n ids."""

    def __init__(self, make: Callable[..., Tensor] | None) -> None:
        self.make = make

    def __call__(self, *values: Tensor) -> Bags:
        """The bags."""
        ids = self.make(*values) if self.make is not None else values[0]
        ends = torch.arange(len(ids) + 1) * ids.shape[1]
        return Bags(ids.reshape(-1).to(torch.int64), ends)


class ChangedBags:
    """Changes the ids of bags, each by itself."""

    def __init__(self, make: Callable[[Tensor], Tensor]) -> None:
        self.make = make

    def __call__(self, bags: Bags) -> Bags:
        """Bags of the same sizes."""
        return Bags(self.make(bags.ids).to(torch.int64), bags.offsets, bags.slots)


def sparse_layer(
    traced: Traced, grouping: Grouping, node: fx.Node, *, name: str, writes: str, table: str, options: dict[str, Any]
) -> SparseEmbedding:
    """The layer of one call of an embedding module."""
    module: Any = traced.embedding(node)
    _check(str(node.target), module, node)
    ids, offsets = _argument(node, 0, "input"), _argument(node, 1, "offsets")
    make, read = _make_ids(traced, grouping, node, ids)
    pooled = module.mode if isinstance(module, nn.EmbeddingBag) else None
    transform: Callable[..., Value] | None = make
    if offsets is not None:
        read = [_bags_of(node, offsets, read)]
        transform = None if make is None else ChangedBags(make)
    elif pooled is not None:
        transform = EqualBags(make)
    if not module.weight.requires_grad:
        options = {**options, "optimizer": "sgd", "lr": 0.0}  # frozen: its rows stay as they are
    return SparseEmbedding(
        name, reads=read, writes=writes, dim=module.embedding_dim, pooling=pooled, table=table, ids=transform,
        keep_shape=True, initial_rows=module.weight.detach(), **options,
    )  # fmt: skip


def extract(root: fx.GraphModule, nodes: list[fx.Node], inputs: list[fx.Node], outputs: list[fx.Node]) -> Any:
    """A module of some calls of a graph; it has the same submodules and weights."""
    graph = fx.Graph()
    copies = {node: graph.placeholder(node.name) for node in inputs}
    for node in nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results = tuple(copies[node] for node in outputs)
    graph.output(results if len(results) > 1 else results[0])
    return fx.GraphModule(root, graph)


def _make_ids(traced: Traced, grouping: Grouping, node: fx.Node, ids: Any) -> tuple[Any, list[str]]:
    """The function that makes the ids (None if the batch has them), and the entries of the batch that it reads."""
    if not isinstance(ids, fx.Node):
        raise InvalidInput(f"embedding {node.target!r} looks up constants; make these weights of their own")
    if ids not in grouping.of_batch:
        raise InvalidInput(
            f"embedding {node.target!r} looks up {ids.name!r}, which other layers compute; ids come with the batch, or "
            f"are made of it without weights. Compute them in the data, or keep it whole, with dense weights: "
            f"leaves=[{str(node.target)!r}]"
        )
    if ids.op == "placeholder":
        return None, [str(ids.target)]
    needed = {ids}
    for other in reversed(list(traced.graph.nodes)):
        if other in needed:
            needed |= set(other.all_input_nodes)
    order = [other for other in traced.graph.nodes if other in needed]
    inputs = [other for other in order if other.op == "placeholder"]
    made = extract(traced.root, [other for other in order if other.op != "placeholder"], inputs, [ids])
    return made, [str(other.target) for other in inputs]


def _bags_of(node: fx.Node, offsets: Any, read: list[str]) -> str:
    """The entry of the batch that holds the bags, whose ids and offsets the call was given."""
    if not isinstance(offsets, fx.Node) or offsets.op != "placeholder" or [str(offsets.target)] != [
        entry + OFFSETS for entry in read
    ]:  # fmt: skip
        raise InvalidInput(
            f"embedding {node.target!r}: ids and offsets belong to one entry of the batch, which is heterps.models.Bags"
            f" in the example; a forward gets them as 'name' and 'name{OFFSETS}'"
        )
    return read[0]


def _argument(node: fx.Node, position: int, name: str) -> Any:
    return node.args[position] if len(node.args) > position else node.kwargs.get(name)


def _check(name: str, module: nn.Embedding | nn.EmbeddingBag, node: fx.Node) -> None:
    """Refuses what a sparse table cannot do."""
    refused = {
        "padding_idx": module.padding_idx is not None,
        "max_norm": module.max_norm is not None,
        "scale_grad_by_freq": module.scale_grad_by_freq,
        "mode='max'": getattr(module, "mode", "sum") == "max",
        "a weight that is computed": not isinstance(module.weight, nn.Parameter),
        "a hook on its weight": bool(module.weight._backward_hooks),
        "per_sample_weights": _argument(node, 2, "per_sample_weights") is not None,
    }
    for what, used in refused.items():
        if used:
            raise InvalidInput(
                f"embedding {name!r} uses {what}, which sparse tables have not; make the module without it, or keep it "
                f"whole, with dense weights: leaves=[{name!r}]"
            )
    if module.weight.dtype != torch.float32:
        raise InvalidInput(f"embedding {name!r} has weights of {module.weight.dtype}; rows are float32")
