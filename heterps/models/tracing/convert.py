"""From a traced module to a chain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, fx, nn

from heterps.errors import InvalidInput
from heterps.models.batch import Bags, Value, batch_size
from heterps.models.chain import Chain
from heterps.models.layer import Layer, SparseEmbedding
from heterps.models.losses import BCEWithLogits
from heterps.models.tracing.groups import Group, Grouping
from heterps.models.tracing.ids import extract, sparse_layer
from heterps.models.tracing.trace import OFFSETS, Leaves, Traced, trace
from heterps.models.tracing.verify import verify

KINDS: dict[type[nn.Module], str] = {
    nn.Linear: "fc",
    nn.LayerNorm: "normalization",
    nn.BatchNorm1d: "normalization",
    nn.MultiheadAttention: "attention",
}


def from_module(
    model: nn.Module,
    example: Mapping[str, Value],
    *,
    loss: nn.Module | None = None,
    label: str = "label",
    leaves: Leaves = (),
    name: str | None = None,
    optimizer: str = "rowwise-adagrad",
    lr: float = 0.01,
    **options: Any,
) -> Chain:
    """See `Chain.from_module`."""
    if not isinstance(model, nn.Module):
        raise InvalidInput(f"a module to cut is an nn.Module, not a {type(model).__name__}")
    _check_example(example)
    traced = trace(model, example, leaves)
    results = _results(traced)
    gives_loss = traced.values[results[0]].ndim == 0
    if gives_loss and loss is not None:
        raise InvalidInput("the module gives one number, which is its loss; leave out `loss`, or give the scores")
    if not gives_loss and label not in example:
        raise InvalidInput(f"the example has no {label!r} for the loss; name its label with label=..., or add it")
    if len(results) > 1 and not gives_loss:
        raise InvalidInput("a module gives its scores, its loss, or both as (loss, score); the first is no loss here")
    grouping = Grouping(traced, results)
    if not grouping.groups and not grouping.embeddings:
        raise InvalidInput("the module computes nothing on what it reads; there is nothing to cut")
    _refuse_shared_rows(grouping)
    table = {"optimizer": optimizer, "lr": lr, **options}
    names = _Names(traced, taken=[*traced.example, label, "loss"])
    layers: list[Layer] = [_embedding(traced, grouping, node, names, table) for node in grouping.embeddings]
    layers += [_dense(traced, group, names, example) for group in grouping.groups]
    written = [names.tensor(node) for node in results]
    if not gives_loss:
        _refuse_probabilities(traced, results[0], loss)
        chosen = BCEWithLogits() if loss is None else loss
        layers.append(Layer(names.layer("loss"), chosen, reads=[written[0], label], writes="loss", kind="loss"))
    elif layers[-1].writes != (written[0],):
        layers.append(Layer(names.layer("loss"), nn.Identity(), reads=written[0], writes="loss", kind="loss"))
    score = written[-1] if not gives_loss or len(written) > 1 else None
    read = {tensor for layer in layers for tensor in layer.reads}
    made = Chain(
        *layers, score=score, label=label if label in read else None, name=name or type(model).__name__.lower()
    )
    verify(made, traced, grouping.embeddings, example, gives_loss=gives_loss)
    made.origin = (model,)
    return made


def _check_example(example: Mapping[str, Value]) -> None:
    batch_size(example)
    for entry, value in example.items():
        if not isinstance(value, Tensor | Bags):
            raise InvalidInput(f"example: {entry!r} is a tensor or Bags, not a {type(value).__name__}")
        if isinstance(value, Bags) and value.slots != 1:
            raise InvalidInput(f"example: the bags {entry!r} have {value.slots} slots; nn.EmbeddingBag knows one")


def _results(traced: Traced) -> list[fx.Node]:
    """What the module gives: the scores or the loss, or (loss, score)."""
    (output,) = traced.graph.find_nodes(op="output")
    given = output.args[0]
    results = list(given) if isinstance(given, tuple | list) else [given]
    wrong = [one for one in results if not isinstance(one, fx.Node) or not isinstance(traced.values[one], Tensor)]
    if wrong or len(results) not in (1, 2):
        raise InvalidInput("a module to cut gives one tensor (the scores, or the loss), or a tuple (loss, score)")
    return results


class _Names:
    """Names of layers and tensors, each used once."""

    def __init__(self, traced: Traced, *, taken: Sequence[str]) -> None:
        self._layers: set[str] = set()
        self._tensors: dict[fx.Node, str] = {}
        used = set(taken)
        for node in traced.graph.nodes:
            name = str(node.target) if node.op == "placeholder" else _unused(node.name, used)
            self._tensors[node] = name
            used.add(name)

    def tensor(self, node: fx.Node) -> str:
        return self._tensors[node]

    def layer(self, wanted: str) -> str:
        plain = wanted.replace(".", "_")
        name = _unused(f"{plain}_layer" if hasattr(nn.Module, plain) else plain, self._layers)
        self._layers.add(name)
        return name


def _unused(wanted: str, taken: Iterable[str]) -> str:
    used, number, name = set(taken), 2, wanted
    while name in used:
        name, number = f"{wanted}_{number}", number + 1
    return name


def _embedding(
    traced: Traced, grouping: Grouping, node: fx.Node, names: _Names, options: dict[str, Any]
) -> SparseEmbedding:
    weight = getattr(traced.embedding(node), "weight", None)
    users = (one for one in grouping.embeddings if getattr(traced.embedding(one), "weight", None) is weight)
    table = str(next(users, node).target).replace(".", "_")  # modules of one weight share the first one's table
    return sparse_layer(
        traced, grouping, node, name=names.layer(str(node.target)), writes=names.tensor(node), table=table,
        options=options,
    )  # fmt: skip


def _dense(traced: Traced, group: Group, names: _Names, example: Mapping[str, Value]) -> Layer:
    """The layer of one group: the module itself where it is one call, else a module of its calls."""
    for node in group.inputs:
        entry = str(node.target) if node.op == "placeholder" else ""
        if isinstance(example.get(entry.removesuffix(OFFSETS)), Bags):
            raise InvalidInput(f"the bags {entry!r} are read by nn.EmbeddingBag alone, not by {group.members[0]}")
        if not isinstance(traced.values[node], Tensor):
            raise InvalidInput(f"{node.name!r} is read by another layer, but is no tensor; name what makes it a leaf")
    first = group.start or group.members[0]
    if not group.inputs:
        raise InvalidInput(f"{first.name!r} reads nothing of the batch; a layer reads at least one tensor")
    module: Any = traced.module(first)
    wanted = str(first.target) if module is not None else first.name if group.start else "features"
    if len(group.nodes) > 1 or module is None or first.kwargs or list(first.args) != group.inputs:
        module = extract(traced.root, group.nodes, group.inputs, group.outputs)
    return Layer(
        names.layer(wanted), module, reads=[names.tensor(node) for node in group.inputs],
        writes=[names.tensor(node) for node in group.outputs], join=False, kind=_kind(traced, first),
    )  # fmt: skip


def _kind(traced: Traced, node: fx.Node) -> str:
    module = traced.module(node)
    return next((kind for type_, kind in KINDS.items() if isinstance(module, type_)), "dense")


def _refuse_probabilities(traced: Traced, result: fx.Node, loss: nn.Module | None) -> None:
    name = result.target if isinstance(result.target, str) else getattr(result.target, "__name__", "")
    ends = name == "sigmoid" if result.op != "call_module" else isinstance(traced.module(result), nn.Sigmoid)
    if ends and (loss is None or isinstance(loss, BCEWithLogits)):
        raise InvalidInput("the module ends in a sigmoid, but the loss takes logits; drop it, or give loss=BCE()")


def _refuse_shared_rows(grouping: Grouping) -> None:
    """An embedding's weight cannot be both in a table and a dense weight."""
    rows = {id(weight): node for node in grouping.embeddings for weight in grouping.weights(node)}
    for member in (node for group in grouping.groups for node in group.members):
        for weight in grouping.weights(member):
            if id(weight) in rows:
                name = str(rows[id(weight)].target)
                raise InvalidInput(
                    f"{member.name!r} computes with the weight of the embedding {name!r}, whose rows lie in a table; "
                    f"keep it whole, with dense weights: leaves=[{name!r}]"
                )
