"""Ordinary modules, as people write them, to be cut into chains."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class DlrmLike(nn.Module):
    """A table for each column, dot products, numbers through a bottom network."""

    def __init__(self, sizes: tuple[int, ...] = (10, 20, 30), dim: int = 4) -> None:
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)
        self.bottom = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Linear(8, dim), nn.ReLU())
        pairs = (len(sizes) + 1) * len(sizes) // 2
        self.top = nn.Sequential(nn.Linear(dim + pairs, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        x = self.bottom(dense)
        vectors = torch.stack([x] + [table(ids[:, i]) for i, table in enumerate(self.embeddings)], dim=1)
        products = vectors @ vectors.transpose(1, 2)
        rows, columns = _pairs(1 + len(self.embeddings))
        return self.top(torch.cat([x, products[:, rows, columns]], dim=1)).squeeze(-1)


def _pairs(n: int) -> tuple[list[int], list[int]]:
    return [i for i in range(n) for _ in range(i)], [j for i in range(n) for j in range(i)]


class OneTable(nn.Module):
    """DeepFM over one table for all columns, with offsets; functional dropout; a bias of its own."""

    def __init__(self, sizes: tuple[int, ...] = (10, 20, 30), dim: int = 4) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0, *sizes[:-1]]).cumsum(0))
        self.embedding = nn.Embedding(sum(sizes), dim)
        self.linear = nn.Embedding(sum(sizes), 1)
        self.bias = nn.Parameter(torch.tensor([0.3]))
        self.fc1 = nn.Linear(len(sizes) * dim, 8)
        self.norm = nn.BatchNorm1d(8)
        self.fc2 = nn.Linear(8, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = ids + self.offsets
        e = self.embedding(x)
        second = 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(1)
        h = functional.relu(self.norm(self.fc1(e.flatten(1))))
        h = functional.dropout(h, 0.5, training=self.training)
        return self.linear(x).sum((1, 2)) + second + self.fc2(h).view(ids.size(0)) + self.bias


class Residual(nn.Module):
    """Blocks with skips, sizes of intermediate values, chunks; takes the whole batch and gives its loss."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.table = nn.Embedding(40, dim)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 12)) for _ in range(3))
        self.gate = nn.Parameter(torch.full((6,), 0.7))
        self.out = nn.Linear(6, 1)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        x = self.table(batch["ids"])
        size, slots, dim = x.shape
        x = x.view(x.size(0), slots * dim)
        for block in self.blocks:
            y = block(x)
            y += x
            x = functional.relu(y)
        left, right = x.chunk(2, dim=1)
        mixed = left * self.gate.sigmoid() + right
        logit = self.out(mixed).view(size)
        loss = functional.binary_cross_entropy_with_logits(logit, batch["label"])
        return loss, logit


class Siamese(nn.Module):
    """Two sides through one tower and one table; gives a cosine."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(50, dim)
        self.tower = nn.Sequential(nn.Linear(dim, 8), nn.Tanh(), nn.Linear(8, 5))
        self.scale = nn.Linear(1, 1)

    def forward(self, query: Tensor, title: Tensor) -> Tensor:
        one, other = (self.tower(self.words(ids).mean(1)) for ids in (query, title))
        return self.scale(functional.cosine_similarity(one, other).unsqueeze(1))


class TwoTowers(nn.Module):
    """Two sides, a table and a tower for each."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.query_words, self.title_words = nn.Embedding(50, dim), nn.Embedding(50, dim)
        self.query_tower = nn.Sequential(nn.Linear(dim, 8), nn.ReLU(), nn.Linear(8, 5))
        self.title_tower = nn.Sequential(nn.Linear(dim, 8), nn.ReLU(), nn.Linear(8, 5))

    def forward(self, query: Tensor, title: Tensor) -> Tensor:
        one = self.query_tower(self.query_words(query).sum(1))
        return (one * self.title_tower(self.title_words(title).sum(1))).sum(1)


class BagModel(nn.Module):
    """Bags of any size by offsets, and bags of equal size by rows."""

    def __init__(self, mode: str = "mean", *, last: bool = False) -> None:
        super().__init__()
        self.tags = nn.EmbeddingBag(30, 4, mode=mode, include_last_offset=last)
        self.slots = nn.EmbeddingBag(40, 3, mode=mode)
        self.country = nn.Embedding(7, 2)
        self.fc = nn.Linear(9, 1)

    def forward(self, tags: Tensor, offsets: Tensor, ids: Tensor, country: Tensor, scale: float = 2.0) -> Tensor:
        parts = [self.tags(tags, offsets), self.slots(ids % 40), self.country(country)]
        return self.fc(torch.cat(parts, dim=1) * scale)


class Sequence(nn.Module):
    """Attention over a history, then a recurrent layer whose result is a tuple."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.items = nn.Embedding(40, dim)
        self.position = nn.Embedding(5, dim)
        self.attention = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.recurrent = nn.GRU(dim, 6, batch_first=True)
        self.out = nn.Linear(6, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.items(ids) + self.position(torch.arange(5))
        attended, _ = self.attention(x, x, x, need_weights=False)
        _, state = self.recurrent(attended + x)
        return self.out(state[-1])


class CrossNet(nn.Module):
    """One float tensor of ids and numbers, a dictionary of tables, parameters in lists, constants, nested modules."""

    def __init__(self, dim: int = 4) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({"a": nn.Embedding(10, dim), "b": nn.Embedding(10, dim)})
        width = 2 * dim + 3
        self.kernels = nn.ParameterList(nn.Parameter(torch.randn(width, 1)) for _ in range(2))
        self.biases = nn.ParameterList(nn.Parameter(torch.randn(width)) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 8), nn.GELU(), nn.Linear(8, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        columns = {"a": slice(0, 1), "b": slice(1, 2)}
        rows = [self.tables[name](x[:, column].long()).squeeze(1) for name, column in columns.items()]
        scale = torch.tensor([1.0, 0.5, 2.0])
        first = crossed = torch.cat([*rows, x[:, 2:] * scale], dim=-1)
        for kernel, bias in zip(self.kernels, self.biases, strict=True):
            crossed = first * (crossed @ kernel) + bias + crossed
        ones = torch.ones(x.shape[0], device=x.device)
        return self.mlp(crossed).squeeze(1) * ones
