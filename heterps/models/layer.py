"""The layers of a chain: any module, with the names of the tensors it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from heterps.errors import InvalidInput
from heterps.models.batch import Bags, Value
from heterps.models.joined import joined, joined_linear


class Layer(nn.Module):
    """A module that reads named tensors and writes others: the smallest part of a model that is placed as a whole."""

    kind = "dense"

    def __init__(
        self,
        name: str,
        module: nn.Module | Callable[..., Any],
        *,
        reads: str | Sequence[str],
        writes: str | Sequence[str],
        join: bool | None = None,
        kind: str | None = None,
    ) -> None:
        """Makes a layer.

        Args:
            name: unique in its chain; the first part of its parameters' names.
            module: called with the tensors read, in the order of `reads`; gives the tensor written, or a tuple of them.
            reads: tensors of the batch or of earlier layers.
            writes: names of what the module gives.
            join: flatten what is read to two axes and concatenate it to one argument. By default for a `Linear` and
                what starts with one, if the layer reads several tensors or ones with more axes.
            kind: what the layer is, for profiles: dense, loss, …
        """
        super().__init__()
        self.name = name
        self.reads = _names(name, "reads", reads)
        self.writes = _names(name, "writes", writes)
        self.join = starts_with_linear(module) if join is None else join
        if kind is not None:
            self.kind = kind
        if isinstance(module, nn.Module):
            self.module = module
        else:
            object.__setattr__(self, "module", module)  # a plain function has no parameters

    def forward(self, *values: Any) -> Any:
        """What the module gives for the tensors it reads."""
        if not self.join:
            return self.module(*values)
        own = getattr(self.module, "joined", None)  # a module that knows how to join by itself
        if own is not None and len(values) > 1:
            return own(values)
        linear, rest = self._linear_and_rest
        if linear is None or len(values) == 1:
            return self.module(joined(values))
        try:
            result = joined_linear(linear, values)
        except InvalidInput as error:
            raise InvalidInput(f"layer {self.name!r}: {error}") from None
        for module in rest:
            result = module(result)
        return result

    @property
    def _linear_and_rest(self) -> tuple[nn.Linear | None, list[nn.Module]]:
        """The `Linear` that a joining layer starts with, and what follows it; None if it must be called as it is."""
        first: Any = self.module
        rest: list[nn.Module] = []
        while type(first) is nn.Sequential and len(first) and not _has_hooks(first):
            rest = [*list(first)[1:], *rest]
            first = first[0]
        return (first, rest) if type(first) is nn.Linear and not _has_hooks(first) else (None, [])

    def written(self, result: Any) -> dict[str, Any]:
        """What the module gave, by name; an `InvalidInput` if the numbers do not match."""
        values = result if isinstance(result, tuple | list) else (result,)
        if len(values) != len(self.writes):
            raise InvalidInput(
                f"layer {self.name!r} writes {', '.join(self.writes)}, but its module gives {len(values)} values"
            )
        return dict(zip(self.writes, values, strict=True))

    def extra_repr(self) -> str:
        """For `print(chain)`."""
        return f"{', '.join(self.reads)} -> {', '.join(self.writes)}"


class RowSource(Protocol):
    """What an embedding layer needs of its table; see `heterps.store.Table`."""

    def pull(self, ids: Any, *, create: bool = True) -> Any:
        """Rows of ids of any shape."""
        ...

    def bag(self, ids: Any, offsets: Any, *, mode: Any = "sum", create: bool = True) -> Any:
        """A pooled row for each bag."""
        ...


class SparseEmbedding(Layer):
    """Rows of a sparse table, by int64 ids: of shape [B, slots] (or [B]), or `Bags` with a pooling.

    Writes [B, slots, dim] (see `keep_shape`). The rows lie in a table of the store or on parameter servers and have an
    optimizer of their own: they are no parameters of the module. The runtime binds a table to the layer; layers that
    name the same table share it.
    """

    kind = "embedding"
    initial_rows: Tensor | None
    make_ids: Callable[..., Value] | None

    def __init__(
        self,
        name: str,
        *,
        reads: str | Sequence[str],
        writes: str,
        dim: int,
        optimizer: str = "rowwise-adagrad",
        lr: float = 0.01,
        pooling: str | None = None,
        table: str | None = None,
        ids: Callable[..., Value] | None = None,
        keep_shape: bool = False,
        initial_rows: Tensor | None = None,
        **options: Any,
    ) -> None:
        """Makes a layer without a table.

        Args:
            name: of the layer, and of its table unless `table` names another.
            reads: the ids, in the batch; with `ids`, the tensors of the batch it is called with.
            writes: the name of the rows.
            dim: floats of a row.
            optimizer: of the rows: sgd, momentum, adagrad, rowwise-adagrad, adam or ftrl.
            lr: learning rate of the rows.
            pooling: sum or mean over the ids of a bag; needed for `Bags`.
            table: the table's name.
            ids: makes the ids of what is read, such as columns of a tensor or ids with offsets; a pure function
                without weights, which treats each sample by itself.
            keep_shape: write the ids' own shape + (dim,), and [B, dim] for bags of one slot.
            initial_rows: rows of the ids 0, 1, …, which the table starts with; by default it makes its own.
            **options: further options of `heterps.store.SparseTable`, such as seed, init_scale, eps or admit_after.
        """
        nn.Module.__init__(self)
        self.name = name
        self.reads = _names(name, "reads", reads)
        self.writes = _names(name, "writes", writes)
        self.join = False
        if (len(self.reads) != 1 and ids is None) or len(self.writes) != 1:
            raise InvalidInput(f"embedding {name!r} reads one tensor of ids and writes one of rows")
        if dim < 1:
            raise InvalidInput(f"embedding {name!r}: dim is at least 1, not {dim}")
        if pooling not in (None, "sum", "mean"):
            raise InvalidInput(f"embedding {name!r}: pooling is 'sum' or 'mean', not {pooling!r}")
        if initial_rows is not None and (initial_rows.ndim != 2 or initial_rows.shape[1] != dim):
            raise InvalidInput(f"embedding {name!r}: initial rows are [ids, {dim}], not {list(initial_rows.shape)}")
        self.dim = dim
        self.pooling = pooling
        self.table_name = table or name
        self.options = {"dim": dim, "optimizer": optimizer, "lr": lr, **options}
        self.table: RowSource | None = None
        self.keep_shape = keep_shape
        object.__setattr__(self, "initial_rows", initial_rows)
        object.__setattr__(self, "make_ids", ids)  # neither follows the module to a device

    def ids_of(self, values: Mapping[str, Value]) -> Value:
        """The ids to look up, out of a batch."""
        read = [values[tensor] for tensor in self.reads]
        ids = self.make_ids(*read) if self.make_ids is not None else read[0]
        if not isinstance(ids, Tensor):
            return ids
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise InvalidInput(f"embedding {self.name!r}: ids are whole numbers, not {ids.dtype}")
        return ids.to(torch.int64)

    def forward(self, *values: Value) -> Tensor:
        """Rows for inference: ids that were never trained read as their first value, and none are made."""
        ids = self.ids_of(dict(zip(self.reads, values, strict=True)))
        if self.table is None:
            raise InvalidInput(f"embedding {self.name!r} has no table yet: train the chain, or bind its tables")
        if isinstance(ids, Bags):
            rows = self.table.bag(ids.ids, ids.offsets[:-1], mode=self._pooling(), create=False)
        else:
            rows = self.table.pull(ids, create=False)
        return self.shaped(torch.as_tensor(rows), ids)

    def shaped(self, rows: Tensor, ids: Value) -> Tensor:
        """Rows as the layer writes them: [B, slots, dim], or of the ids' own shape."""
        if not self.keep_shape:
            slots = ids.slots if isinstance(ids, Bags) else ids.shape[1:].numel()
            return rows.view(len(ids), slots, self.dim)
        if isinstance(ids, Bags):
            return rows.view(-1, self.dim) if ids.slots == 1 else rows.view(len(ids), ids.slots, self.dim)
        return rows.view(*ids.shape, self.dim)

    def _pooling(self) -> str:
        if self.pooling is None:
            raise InvalidInput(f"embedding {self.name!r} reads bags, and needs pooling='sum' or 'mean'")
        return self.pooling

    def extra_repr(self) -> str:
        """For `print(chain)`."""
        return f"{super().extra_repr()}, dim={self.dim}, table={self.table_name!r}"


def starts_with_linear(module: object) -> bool:
    """True for a `Linear`, and for a `Sequential` that starts with one."""
    while isinstance(module, nn.Sequential) and len(module):
        module = module[0]
    return isinstance(module, nn.Linear)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _names(layer: str, what: str, names: str | Sequence[str]) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names)
    if not given or not all(isinstance(name, str) and name for name in given) or len(set(given)) != len(given):
        raise InvalidInput(f"layer {layer!r}: {what} names at least one tensor, each once, not {names!r}")
    return given
