"""Which calls make up a layer.

A call of a module with weights, or with a matrix of weights, or that multiplies matrices, starts a layer. Any other
call joins the layer that made its latest input, so that what crosses from layer to layer is what a call ended with.
Calls on rows alone (pooling, second orders of factorization machines) come before all of these, in a layer of their own
unless only the first layer reads them. Some calls are repeated where they are read instead of handed on: those on the
batch or on weights alone, those that give no tensor, such as sizes, and views of what is read as well. Layers that
share a weight become one, with all between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby

from torch import Tensor, fx, nn

from heterps.models.tracing.trace import Traced

HEAVY = {"matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "linear", "scaled_dot_product_attention"}
RANDOM = {"rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "randperm", "bernoulli", "normal",
          "multinomial", "dropout", "alpha_dropout", "feature_alpha_dropout", "rrelu", "gumbel_softmax"}  # fmt: skip

VIEWS = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "transpose", "permute", "t"}


@dataclass(slots=True)
class Group:
    """The calls of one layer, in order."""

    members: list[fx.Node]
    start: fx.Node | None
    """The first that computes with weights or multiplies matrices; None for calls on rows alone."""
    nodes: list[fx.Node] = field(default_factory=list)
    """The members and what is repeated for them, in the order of the graph."""
    inputs: list[fx.Node] = field(default_factory=list)
    """What they read of the batch, of embeddings and of other layers."""
    outputs: list[fx.Node] = field(default_factory=list)
    """What others read of them."""


class Grouping:
    """The graph's calls as embeddings and groups; only what the outputs depend on."""

    def __init__(self, traced: Traced, outputs: list[fx.Node]) -> None:
        self.traced = traced
        self._order = {node: number for number, node in enumerate(traced.graph.nodes)}
        self._live = self._live_nodes(outputs)
        self.embeddings = [node for node in self._live if self.is_embedding(node)]
        self.of_batch, self.of_weights = self._repeated()
        self._repeat = {node for node in self._live if node.op != "placeholder" and self._is_repeated(node)}
        self.groups = [Group(members, next(filter(self._starts, members), None)) for members in self._ranked()]
        for group in self.groups:
            self._close(group)
        for group in self.groups:
            read_elsewhere = {node for other in self.groups if other is not group for node in other.inputs}
            group.outputs = [node for node in group.members if node in read_elsewhere or node in outputs]

    def is_embedding(self, node: fx.Node) -> bool:
        """True for the call of an embedding whose rows become a table."""
        return self.traced.embedding(node) is not None

    def _is_repeated(self, node: fx.Node) -> bool:
        alone = node in self.of_batch or node in self.of_weights or node.op == "get_attr"
        return alone or (self._pure(node) and not isinstance(self.traced.values[node], Tensor))

    def _live_nodes(self, outputs: list[fx.Node]) -> dict[fx.Node, None]:
        """What the outputs depend on, in order; the ids of embeddings aside, which have a graph of their own."""
        live: set[fx.Node] = set()
        waiting = list(outputs)
        while waiting:
            node = waiting.pop()
            if node not in live:
                live.add(node)
                waiting += [] if self.is_embedding(node) else node.all_input_nodes
        return dict.fromkeys(sorted(live, key=self._order.__getitem__))

    def _pure(self, node: fx.Node) -> bool:
        return node.op in ("call_function", "call_method") and _name(node).rstrip("_") not in RANDOM

    def _repeated(self) -> tuple[set[fx.Node], set[fx.Node]]:
        """Pure calls on the batch and constants alone, and pure calls on weights and constants alone."""
        of_batch: set[fx.Node] = set()
        of_weights: set[fx.Node] = set()
        for node in self._order:
            given = node.all_input_nodes
            if self.is_weight(node):
                of_weights.add(node)
            elif node.op in ("placeholder", "get_attr") or (self._pure(node) and of_batch.issuperset(given)):
                of_batch.add(node)
            elif self._pure(node) and all(one in of_weights or one.op == "get_attr" for one in given):
                of_weights.add(node)
        return of_batch, of_weights

    def is_weight(self, node: fx.Node) -> bool:
        """True for a parameter that forward uses itself."""
        return node.op == "get_attr" and isinstance(self.traced.values[node], nn.Parameter)

    def _starts(self, node: fx.Node) -> bool:
        module = self.traced.module(node)
        if module is not None:
            return any(True for _ in module.parameters()) or any(True for _ in module.buffers())
        matrices = (given in self.of_weights and self.traced.values[given].ndim > 1 for given in node.all_input_nodes)
        return _name(node) in HEAVY or any(matrices)

    def _ranked(self) -> list[list[fx.Node]]:
        """The members of each group. Rank 0 is of calls on rows (and the batch); each start has the next rank."""
        rank: dict[fx.Node, int] = {}
        last = 0
        for node in self._live:
            if node.op == "placeholder" or self.is_embedding(node) or node in self.of_batch or node in self.of_weights:
                rank[node] = 0
            elif node not in self._repeat and self._starts(node):
                rank[node] = last = last + 1
            else:
                rank[node] = max((rank[given] for given in node.all_input_nodes), default=0)
        members = [node for node in self._live if self._is_member(node)]
        merged = self._merged(members, rank, last)
        ordered = sorted(members, key=lambda node: (merged[rank[node]], self._order[node]))
        return [list(part) for _, part in groupby(ordered, key=lambda node: merged[rank[node]])]

    def _is_member(self, node: fx.Node) -> bool:
        return node.op != "placeholder" and not self.is_embedding(node) and node not in self._repeat

    def _merged(self, members: list[fx.Node], rank: dict[fx.Node, int], last: int) -> list[int]:
        """New rank by rank: those between the first and the last use of a weight are one."""
        spans: dict[int, tuple[int, int]] = {}
        for node in members:
            for weight in self.weights(node):
                first, final = spans.get(id(weight), (rank[node], rank[node]))
                spans[id(weight)] = (min(first, rank[node]), max(final, rank[node]))
        joined = {one for first, final in spans.values() for one in range(first + 1, final + 1)}
        merged = _numbered(last, joined)
        readers = {rank[user] for node in members if rank[node] == 0 for user in self._readers(node)} - {0}
        return _numbered(last, joined | {1}) if {merged[one] for one in readers} == {1} else merged

    def weights(self, node: fx.Node) -> Iterator[Tensor]:
        """Parameters (and buffers of a module) that a call uses: of its module, or handed to it."""
        module = self.traced.module(node)
        if module is not None:
            yield from module.parameters()
            yield from module.buffers()
        waiting = list(node.all_input_nodes)
        while waiting:
            given = waiting.pop()
            if self.is_weight(given):
                yield self.traced.values[given]
            elif given in self._repeat:
                waiting += given.all_input_nodes

    def _readers(self, node: fx.Node) -> Iterator[fx.Node]:
        """Members that read a node, directly or through what is repeated for them."""
        for user in node.users:
            if user in self._repeat:
                yield from self._readers(user)
            elif user in self._live and self._is_member(user):
                yield user

    def _close(self, group: Group) -> None:
        """Finds what the members read, and what is repeated for them."""
        inside, inputs = set(group.members), set()
        waiting = list(group.members)
        while waiting:
            for given in waiting.pop().all_input_nodes:
                if given in inside or given in inputs:
                    continue
                if given in self._repeat:
                    inside.add(given)
                    waiting.append(given)
                else:
                    inputs.add(given)
        for view in [node for node in inputs if _name(node) in VIEWS and inputs.issuperset(node.all_input_nodes)]:
            inputs.remove(view)
            inside.add(view)
        group.nodes = sorted(inside, key=self._order.__getitem__)
        group.inputs = sorted(inputs, key=self._order.__getitem__)


def _numbered(last: int, joined: set[int]) -> list[int]:
    """New ranks of 0 … last: those in `joined` get their predecessor's."""
    ranks = [0]
    for one in range(1, last + 1):
        ranks.append(ranks[-1] + (one not in joined))
    return ranks


def _name(node: fx.Node) -> str:
    """The function or method that a node calls."""
    if node.op == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""
