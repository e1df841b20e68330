"""Scores with an exported model, without heterps' runtime, store or native core.

`load("exported")` gives an `nn.Module` that takes a batch and gives the score of each sample, exactly as the trained
chain's `predict` does. Ids that the training never saw read as they do there: as their first value, which is a pure
function of (seed, table, id) and is computed again here.

An export is a directory with

    model.json               format, model (name and arguments), layers, tables
    model.safetensors        the dense weights, by their names in the chain's state_dict
    embeddings.safetensors   for each table NAME: NAME.ids, int64 [N], sorted, and NAME.rows, float32 [N, dim]
    tables/NAME.parquet      the same rows for other programs: columns id and vector
    module.safetensors       of a model that was cut from an nn.Module: its own state dict, embeddings included
    example.safetensors      a small batch, where the model is traced with one (a function that returns an nn.Module)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from heterps.errors import InvalidInput
from heterps.models.batch import Bags, Batch
from heterps.models.chain import Chain
from heterps.models.named import build_named

FORMAT = "heterps.export/1"
DESCRIPTION, DENSE, ROWS, EXAMPLE = "model.json", "model.safetensors", "embeddings.safetensors", "example.safetensors"
MODULE = "module.safetensors"

_GOLDEN = 0x9E3779B97F4A7C15


class Scorer(nn.Module):
    """Scores batches; a plain module without gradients, which moves to a device with all its rows."""

    def __init__(self, chain: Chain) -> None:
        super().__init__()
        self.chain = chain
        self.requires_grad_(False)
        self.eval()

    def forward(self, batch: Batch) -> Tensor:
        """The score of each sample, [B]: for most models a logit. The batch needs no label."""
        with torch.no_grad():
            return self.chain.predict(batch)


class FrozenTable(nn.Module):
    """Rows under sorted ids. The calls are those that `SparseEmbedding` makes of a table."""

    ids: Tensor
    rows: Tensor

    def __init__(self, ids: Tensor, rows: Tensor, first: FirstValues) -> None:
        super().__init__()
        self.register_buffer("ids", ids)
        self.register_buffer("rows", rows)
        self.first = first

    def pull(self, ids: Tensor, *, create: bool = False) -> Tensor:
        """Rows of ids of any shape; nothing is made."""
        flat = ids.reshape(-1)
        if not len(self.ids):
            return self._first(flat).view(*ids.shape, -1)
        place = torch.searchsorted(self.ids, flat).clamp_(max=len(self.ids) - 1)
        rows, unseen = self.rows[place], self.ids[place] != flat
        if bool(unseen.any()):
            rows[unseen] = self._first(flat[unseen])
        return rows.view(*ids.shape, -1)

    def bag(self, ids: Tensor, offsets: Tensor, *, mode: str = "sum", create: bool = False) -> Tensor:
        """A pooled row for each bag, summed in the order of its ids as the store does, so that no bit differs."""
        rows = self.pull(ids)
        sizes = torch.diff(offsets, append=offsets.new_tensor([len(ids)]))
        pooled = rows.new_zeros(len(offsets), rows.shape[1])
        for position in range(int(sizes.max()) if len(sizes) else 0):
            has = sizes > position
            pooled[has] += rows[offsets[has] + position]
        if mode == "mean":
            pooled *= (1 / sizes.clamp(min=1).to(torch.float32)).unsqueeze(1)
        return pooled

    def _first(self, ids: Tensor) -> Tensor:
        return torch.from_numpy(self.first(ids.cpu().numpy())).to(self.rows)


class FirstValues:
    """Rows of ids that have none, by the store's rule (csrc/store/hash.hpp), or zeros where it admits ids late."""

    def __init__(self, name: str, *, dim: int, seed: int, init_scale: float, unseen: str) -> None:
        self._dim, self._scale, self._zeros = dim, np.float32(init_scale), unseen == "zeros"
        fnv = 0xCBF29CE484222325
        for byte in name.encode():
            fnv = (fnv ^ byte) * 0x100000001B3 % 2**64
        self._key = _mix(_words([seed % 2**64]) + _mix(_words([fnv])))

    def __call__(self, ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """One row for each id: uniform in [-init_scale, init_scale)."""
        if self._zeros:
            return np.zeros((len(ids), self._dim), np.float32)
        numbers = np.arange(1, (self._dim + 1) // 2 + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
        draws = _mix(_mix(ids.astype(np.uint64) ^ self._key)[:, None] + numbers)
        halves = np.stack([draws & np.uint64(0xFFFFFFFF), draws >> np.uint64(32)], axis=2).reshape(len(ids), -1)
        bits = (halves[:, : self._dim] >> np.uint64(8)).astype(np.float32)
        return (bits * np.float32(2**-23) - np.float32(1)) * self._scale


def load(path: str | PathLike[str], *, chain: Chain | None = None) -> Scorer:
    """The model of an export (`heterps export`), ready to score.

    Args:
        path: the export's directory.
        chain: a new chain of the same layers, for an export that does not name its model; it becomes the scorer's.

    Raises:
        InvalidInput: if the directory is no export, or the model is not the one that was exported.
    """
    directory = Path(path)
    described = _describe(directory)
    chain = _build(directory, described) if chain is None else chain
    layers = [layer.name for layer in chain.layers]
    exported = [layer["name"] for layer in described["layers"]]
    if layers != exported:
        raise InvalidInput(f"{directory} is of layers {', '.join(exported)}; the model has {', '.join(layers)}")
    try:
        chain.load_state_dict(_tensors(directory / DENSE))
    except RuntimeError as error:
        raise InvalidInput(f"{directory}: its weights do not fit the model: {' '.join(str(error).split())}") from None
    rows = _tensors(directory / ROWS)
    tables = {
        name: FrozenTable(rows[f"{name}.ids"], rows[f"{name}.rows"], FirstValues(name, **_rule(table)))
        for name, table in described["tables"].items()
    }
    for layer in chain.embeddings:
        layer.table = tables[layer.table_name]
    return Scorer(chain)


def example_tensors(batch: Batch) -> dict[str, Tensor]:
    """A batch as tensors that a file can hold; `NAME|slots` and so on stand for bags."""
    tensors: dict[str, Tensor] = {}
    for name, value in batch.items():
        if isinstance(value, Bags):
            tensors[f"{name}|ids"], tensors[f"{name}|offsets"] = value.ids.contiguous(), value.offsets.contiguous()
            tensors[f"{name}|slots"] = torch.tensor(value.slots)
        else:
            tensors[name] = value.contiguous()
    return tensors


def example_batch(tensors: Mapping[str, Tensor]) -> Batch:
    """The inverse of `example_tensors`."""
    batch: Batch = {name: value for name, value in tensors.items() if "|" not in name}
    for name in (key.removesuffix("|slots") for key in tensors if key.endswith("|slots")):
        ids, offsets, slots = (tensors[f"{name}|{part}"] for part in ("ids", "offsets", "slots"))
        batch[name] = Bags(ids, offsets, int(slots))
    return batch


def _describe(directory: Path) -> dict[str, Any]:
    try:
        described: dict[str, Any] = json.loads((directory / DESCRIPTION).read_text())
    except FileNotFoundError:
        raise InvalidInput(f"{directory}: no exported model there ({DESCRIPTION} is missing)") from None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{directory / DESCRIPTION}: cannot be read: {error}") from None
    if described.get("format") != FORMAT:
        raise InvalidInput(f"{directory}: format {described.get('format')!r}, this version reads {FORMAT}")
    return described


def _build(directory: Path, described: Mapping[str, Any]) -> Chain:
    model = described["model"]
    if model is None:
        raise InvalidInput(f"{directory} names no model: give load(..., chain=...) a new chain of the same layers")
    return build_named(
        model["name"], model["args"], seed=model.get("seed", 0),
        example=lambda: example_batch(_tensors(directory / EXAMPLE)),
    )  # fmt: skip


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise InvalidInput(f"{path}: cannot be read ({error}); export the model again") from None


def _rule(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: table[name] for name in ("dim", "seed", "init_scale", "unseen")}


def _words(values: list[int]) -> NDArray[np.uint64]:
    return np.array(values, dtype=np.uint64)


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64, on 64-bit words that wrap around."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
