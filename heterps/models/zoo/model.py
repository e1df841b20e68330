"""What all models of the zoo share: arguments, fully connected layers, and twins in plain PyTorch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn
from torch.nn import functional

from heterps.documents import Document
from heterps.models.batch import Batch
from heterps.models.joined import joined_linear
from heterps.models.layer import Layer, SparseEmbedding

Count = Annotated[int, Field(ge=1, description="a whole number of 1 or more")]
CountOrNone = Annotated[int, Field(ge=0, description="a whole number of 0 or more; 0 for none")]
Widths = Annotated[
    tuple[Annotated[int, Field(ge=1, strict=True)], ...],
    Field(strict=False, description="widths of the hidden layers, such as [400, 400]"),
]


class Model(Document):
    """The arguments of a model, and what is made of them."""

    model_config = ConfigDict(extra="forbid")
    PAPER: ClassVar[Mapping[str, Any]] = {}
    """Arguments that `paper=True` starts from."""

    dim: Count = 16
    optimizer: str = Field(default="rowwise-adagrad", description="of the rows, by its name in heterps.store")
    lr: float = Field(default=0.01, ge=0, description="learning rate of the rows, 0 or more")
    init_scale: float = Field(default=0.01, ge=0, description="first values of rows are uniform up to it, 0 or more")
    seed: int = Field(default=0, description="of the first values of dense weights and rows")

    @model_validator(mode="before")
    @classmethod
    def _as_in_the_paper(cls, data: Any) -> Any:
        return {**cls.PAPER, **data} if isinstance(data, Mapping) and data.get("paper") is True else data

    @abstractmethod
    def layers(self) -> list[Layer]:
        """The layers of the chain; weights come from torch's generator."""

    @abstractmethod
    def example(self, size: int, rows: int, generator: torch.Generator) -> Batch:
        """A random batch of so many samples, with ids from 0 to rows - 1."""

    @abstractmethod
    def twin(self, rows: int) -> Twin:
        """The same as an ordinary module."""

    def embedding(self, name: str, *, reads: str = "ids", dim: int | None = None, **options: Any) -> SparseEmbedding:
        """An embedding layer that writes a tensor of its own name."""
        return SparseEmbedding(
            name, reads=reads, writes=name, dim=dim or self.dim, optimizer=self.optimizer, lr=self.lr, seed=self.seed,
            init_scale=self.init_scale, **options,
        )  # fmt: skip


class Tabular(Model):
    """A model of click-through rates: reads "ids" [B, slots], "dense" [B, dense] and "label" [B]."""

    slots: Count = 26
    dense: CountOrNone = 13

    def example(self, size: int, rows: int, generator: torch.Generator) -> Batch:
        """Random ids, numbers and labels."""
        batch: Batch = {"ids": random_ids(size, self.slots, rows, generator), "label": random_labels(size, generator)}
        if self.dense:
            batch["dense"] = torch.randn(size, self.dense, generator=generator)
        return batch

    @property
    def features(self) -> list[str]:
        """What the first fully connected layer reads."""
        return ["embedding", "dense"] if self.dense else ["embedding"]

    @property
    def width(self) -> int:
        """Floats of the features of a sample."""
        return self.slots * self.dim + self.dense


def random_ids(size: int, columns: int, rows: int, generator: torch.Generator) -> Tensor:
    """Ids from 0 to rows - 1, [size, columns]."""
    return torch.randint(rows, (size, columns), generator=generator)


def random_labels(size: int, generator: torch.Generator) -> Tensor:
    """Labels of 0 and 1, [size]."""
    return torch.randint(2, (size,), generator=generator).to(torch.float32)


class FullyConnected(nn.Linear):
    """A linear layer followed by a ReLU."""

    def forward(self, values: Tensor) -> Tensor:
        """The rectified values."""
        return functional.relu(super().forward(values), inplace=True)

    def joined(self, values: Sequence[Tensor]) -> Tensor:
        """The same for tensors side by side, without putting them there."""
        return functional.relu(joined_linear(self, values), inplace=True)


class SumPool(nn.Module):
    """The sum of the rows of each slot, which lie side by side: [B, slots · ids, dim] to [B, slots, dim]."""

    def __init__(self, slots: int) -> None:
        super().__init__()
        self.slots = slots

    def forward(self, *rows: Tensor) -> Tensor:
        """The sums; several tensors of rows are put side by side first."""
        joined = rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)
        return joined.view(len(joined), self.slots, -1, joined.shape[-1]).sum(dim=2)


def total(*terms: Tensor) -> Tensor:
    """The sum of several tensors of one shape."""
    return torch.stack(terms).sum(dim=0) if len(terms) > 2 else sum(terms[1:], terms[0])


def fully_connected(
    reads: str | list[str],
    *widths: int,
    writes: str,
    prefix: str = "",
    split: bool = False,
    last: type[nn.Linear] = nn.Linear,
) -> Iterator[Layer]:
    """Layers fc1, fc2, … from widths[0] floats to widths[-1], rectified but for the last one.

    With `split` each ReLU is a layer of its own: relu1, relu2, …
    """
    pairs = list(pairwise(widths))
    for number, (width_in, width_out) in enumerate(pairs, start=1):
        name, relu, is_last = f"{prefix}fc{number}", f"{prefix}relu{number}", number == len(pairs)
        linear = last if is_last else nn.Linear if split else FullyConnected
        yield Layer(name, linear(width_in, width_out), reads=reads, writes=writes if is_last else name, kind="fc")
        reads = name
        if split and not is_last:
            yield Layer(relu, nn.ReLU(), reads=name, writes=relu, kind="activation")
            reads = relu


class Twin(nn.Module):
    """A model of the zoo in plain PyTorch. Its submodules have the names of the chain's layers.

    forward(batch) gives the loss and the score.
    """

    @abstractmethod
    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """The mean loss over the samples, and the score of each."""

    def embedding_parameters(self) -> list[nn.Parameter]:
        """The weights that are tables in the chain, for an optimizer of their own."""
        weights = [module.weight for module in self.modules() if isinstance(module, nn.Embedding)]
        return [weight for weight in weights if isinstance(weight, nn.Parameter)]

    def dense_parameters(self) -> list[nn.Parameter]:
        """All others."""
        tables = {id(weight) for weight in self.embedding_parameters()}
        return [weight for weight in self.parameters() if id(weight) not in tables]

    def add_linears(self, *widths: int, prefix: str = "") -> None:
        """Adds the linear layers fc1, fc2 and so on, with a prefix."""
        for number, (width_in, width_out) in enumerate(pairwise(widths), start=1):
            self.add_module(f"{prefix}fc{number}", nn.Linear(width_in, width_out))

    def run_linears(self, values: Tensor, *, prefix: str = "", last_relu: bool = False) -> Tensor:
        """Runs them, with a ReLU between any two."""
        count = sum(name.removeprefix(f"{prefix}fc").isdigit() for name, _ in self.named_children())
        for number in range(1, count + 1):
            values = self.get_submodule(f"{prefix}fc{number}")(values)
            if number < count or last_relu:
                values = torch.relu(values)
        return values
