"""A model as an ordered list of layers that read and write named tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from heterps.errors import InvalidInput, did_you_mean
from heterps.models.batch import Batch, Value
from heterps.models.layer import Layer, SparseEmbedding
from heterps.models.losses import Loss


class Chain(nn.Module):
    """Layers in the order they run. The last one writes the loss: one number, the mean over the samples of a batch.

    What a layer reads was written by an earlier one, or comes with the batch; so skip connections, towers and several
    inputs are a matter of names. `state_dict` holds the dense weights; rows are in the tables (`tables`).
    """

    def __init__(self, *layers: Layer, score: str | None = None, label: str | None = None, name: str = "chain") -> None:
        """Makes a chain.

        Args:
            *layers: at least one.
            score: the tensor whose order the AUC measures; by default the first that the loss reads.
            label: the tensor of 0 and 1 it is measured against; by default the second that the loss reads.
            name: of the model, for plans and reports.
        """
        super().__init__()
        self.origin: tuple[nn.Module] | None = None
        """The module it was cut from, if one was; in a tuple, so that its weights are not this chain's once more."""
        self.name = name
        self.layers = layers
        self._check_names()
        last = layers[-1]
        reads_label = isinstance(getattr(last, "module", None), Loss) and len(last.reads) == 2
        self.score = score or (last.reads[0] if reads_label else None)
        self.label = label or (last.reads[1] if reads_label else None)
        for what, tensor in (("score", self.score), ("label", self.label)):
            if tensor is not None and tensor not in {*self.inputs, *self._writer}:
                raise InvalidInput(f"{what}: no layer reads or writes {tensor!r}")
        for layer in layers:  # last and without add_module: a layer may be called loss or score, as attributes here are
            self._modules[layer.name] = layer

    @classmethod
    def from_module(
        cls,
        model: nn.Module,
        example: Mapping[str, Value],
        *,
        loss: nn.Module | None = None,
        label: str = "label",
        leaves: Sequence[type[nn.Module] | nn.Module | str] = (),
        name: str | None = None,
        **table: Any,
    ) -> Chain:
        """Cuts an ordinary module into a chain, by tracing it with `torch.fx`.

        Its forward takes entries of the batch as the parameters of their names, or the batch as one dictionary, and
        gives scores (logits, for the default loss), its loss (the mean over the samples), or (loss, score). Every
        `nn.Embedding` and `nn.EmbeddingBag` becomes a sparse layer with a table of its own, which starts with the
        module's rows; ids are entries of the batch or made of them without weights. Dense weights stay the module's
        own. An `InvalidInput` names the line that cannot be traced.

        Args:
            model: the module. Training changes its dense weights, which are the chain's; its embeddings stay as they
                are: the trained rows are in the chain's tables, and in `module_state_dict`.
            example: a small batch, of at least two samples if it can be. Multi-valued slots are `Bags`: forward gets
                their ids under their name, and their offsets as name + "_offsets" (or "offsets").
            loss: called with scores and labels; by default `BCEWithLogits`.
            label: the entry of the batch that the loss reads.
            leaves: modules, their types or their names that stay whole; an embedding among them stays dense.
            name: of the model; by default that of its class.
            **table: options of all tables: optimizer, lr, and those of `SparseEmbedding`.
        """
        from heterps.models.tracing import from_module

        return from_module(model, example, loss=loss, label=label, leaves=leaves, name=name, **table)

    def module_state_dict(self) -> dict[str, Tensor]:
        """The state dict of the module that this chain was cut from, trained rows included.

        `model.load_state_dict(chain.module_state_dict())` makes the module what was trained. Each embedding has as many
        rows as it had; rows of ids beyond are in the tables alone.
        """
        if self.origin is None:
            raise InvalidInput("this chain was not cut from a module: chain.state_dict() and chain.tables have it all")
        state = {name: value.detach().clone() for name, value in self.origin[0].state_dict().items()}
        for layer in self.embeddings:
            first = layer.initial_rows
            if layer.table is None or first is None:
                continue
            rows = torch.as_tensor(layer.table.pull(torch.arange(len(first)), create=False))
            for name, value in self.origin[0].state_dict().items():
                if value.data_ptr() == first.data_ptr() and value.shape == first.shape:
                    state[name] = rows.to(value)
        return state

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "origin": None}  # other processes train the chain alone

    def _check_names(self) -> None:
        if not self.layers:
            raise InvalidInput("a chain has at least one layer")
        names: set[str] = set()
        self._writer: dict[str, int] = {}
        read_from_batch: dict[str, int] = {}
        for number, layer in enumerate(self.layers):
            if not isinstance(layer, Layer):
                raise InvalidInput(f"layer {number} is a {type(layer).__name__}; wrap modules in heterps.Layer")
            if not layer.name or "." in layer.name or layer.name in names or hasattr(nn.Module, layer.name):
                raise InvalidInput(
                    f"a layer's name is used once, has no dots and is no attribute of modules: {layer.name!r}"
                )
            names.add(layer.name)
            for tensor in layer.reads:
                if tensor not in self._writer:
                    read_from_batch.setdefault(tensor, number)
            for tensor in layer.writes:
                if tensor in self._writer or tensor in read_from_batch:
                    raise InvalidInput(f"layer {layer.name!r} writes {tensor!r}, which is written or read before")
                self._writer[tensor] = number
            if isinstance(layer, SparseEmbedding) and not self._writer.keys().isdisjoint(layer.reads):
                raise InvalidInput(f"embedding {layer.name!r} reads its ids from the batch, not from another layer")
        if len(self.layers[-1].writes) != 1:
            raise InvalidInput(f"the last layer writes the loss alone, not {', '.join(self.layers[-1].writes)}")
        self.inputs = tuple(read_from_batch)

    @property
    def loss(self) -> str:
        """Name of the loss."""
        return self.layers[-1].writes[0]

    @property
    def embeddings(self) -> tuple[SparseEmbedding, ...]:
        """The layers whose rows lie in tables."""
        return tuple(layer for layer in self.layers if isinstance(layer, SparseEmbedding))

    @property
    def tables(self) -> dict[str, Any]:
        """The bound tables by name: empty before training."""
        return {layer.table_name: layer.table for layer in self.embeddings if layer.table is not None}

    def writer(self, tensor: str) -> int | None:
        """Number of the layer that writes a tensor; None for one of the batch."""
        return self._writer.get(tensor)

    def alive(self, cut: int) -> tuple[str, ...]:
        """Tensors that cross the cut before layer `cut`: written before it, and read by it or later."""
        read_later = {tensor for layer in self.layers[cut:] for tensor in layer.reads}
        return tuple(tensor for tensor, writer in self._writer.items() if writer < cut and tensor in read_later)

    def read_by(self, first: int, last: int) -> tuple[str, ...]:
        """Tensors of the batch that the layers first … last read."""
        wanted = {tensor for layer in self.layers[first : last + 1] for tensor in layer.reads}
        return tuple(tensor for tensor in self.inputs if tensor in wanted)

    def check_batch(self, batch: Collection[str]) -> None:
        """An `InvalidInput` that names what the batch, or these names of its tensors, lack."""
        for tensor in self.inputs:
            if tensor not in batch:
                raise InvalidInput(
                    f"the batch has no {tensor!r}, which {self._reader(tensor)!r} reads; it has "
                    f"{', '.join(map(repr, batch))}.{did_you_mean(tensor, batch)}"
                )

    def _reader(self, tensor: str) -> str:
        return next(layer.name for layer in self.layers if tensor in layer.reads)

    def forward(self, batch: Mapping[str, Value]) -> dict[str, Any]:
        """Runs all layers here and now, tables read-only: every tensor by name. Gradients stop at the rows."""
        self.check_batch(batch)
        values: dict[str, Any] = dict(batch)
        for layer in self.layers:
            values.update(run_layer(layer, values))
        return values

    def predict(self, batch: Batch) -> Tensor:
        """The score of each sample, [B] if it has one: runs the layers up to the one that writes it."""
        if self.score is None:
            raise InvalidInput("the chain names no score: make it with Chain(..., score=...)")
        last = self._writer.get(self.score, -1)
        values: dict[str, Any] = dict(batch)
        for layer in self._needed(last):
            values.update(run_layer(layer, values))
        score = values[self.score]
        assert isinstance(score, Tensor)
        return score.reshape(len(score), -1).squeeze(1)

    def _needed(self, last: int) -> Iterator[Layer]:
        """The layers up to `last` that the output of `last` depends on."""
        needed: set[str] = set(self.layers[last].writes) if last >= 0 else set()
        chosen = []
        for layer in reversed(self.layers[: last + 1]):
            if needed & set(layer.writes):
                chosen.append(layer)
                needed |= set(layer.reads)
        return reversed(chosen)


def run_layer(layer: Layer, values: Mapping[str, Any]) -> dict[str, Any]:
    """What a layer writes, by name."""
    return layer.written(layer(*(values[tensor] for tensor in layer.reads)))
