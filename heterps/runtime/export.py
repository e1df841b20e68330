"""Exports a trained chain as files that score without heterps' runtime; `heterps.models.scoring` reads them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from heterps.errors import HeterPSError, InvalidInput
from heterps.models import Batch, Chain
from heterps.models.scoring import DENSE, DESCRIPTION, EXAMPLE, FORMAT, MODULE, ROWS, example_tensors
from heterps.store import SparseTable


class ExportFailed(HeterPSError):
    """An export that could not be written; nothing of it is left."""


def export(
    chain: Chain,
    path: str | PathLike[str],
    *,
    model: str | Mapping[str, Any] | None = None,
    example: Batch | None = None,
) -> Path:
    """Writes a chain's weights and rows; see `heterps.models.scoring` for the files. Returns the directory.

    Args:
        chain: trained, its tables in this process.
        path: a new directory, or that of an earlier export, which it replaces.
        model: a zoo name, `package.module:function`, or {name, args, seed} of it, so that `scoring.load` can build the
            model by itself; None: it has to be given a chain.
        example: a small batch, needed where the model is a function that returns an ordinary module.
    """
    target = Path(path).absolute()
    if target.exists() and not _replaceable(target):
        raise InvalidInput(f"{target} exists and is no export; choose another directory")
    tables = {name: _own(name, table) for name, table in chain.tables.items()}
    missing = {layer.table_name for layer in chain.embeddings} - tables.keys()
    if missing:
        raise InvalidInput(f"the chain has no rows yet in {', '.join(sorted(missing))}: train it first")
    draft = target.with_name(f".draft-{target.name}")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        (draft / "tables").mkdir(parents=True)
        _write(draft, chain, tables, model, example)
        shutil.rmtree(target, ignore_errors=True)
        draft.rename(target)
    except OSError as error:
        raise ExportFailed(f"{target}: cannot be written ({error.strerror or error})") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def _replaceable(target: Path) -> bool:
    if not target.is_dir():
        return False
    try:
        return not any(target.iterdir()) or json.loads((target / DESCRIPTION).read_text())["format"] == FORMAT
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _own(name: str, table: Any) -> SparseTable:
    if not isinstance(table, SparseTable):
        raise InvalidInput(f"table {name!r} lies on parameter servers; only tables of this process can be exported")
    return table


def _write(
    directory: Path,
    chain: Chain,
    tables: Mapping[str, SparseTable],
    model: str | Mapping[str, Any] | None,
    example: Batch | None,
) -> None:
    save_file(_apart(chain.state_dict()), directory / DENSE)
    rows: dict[str, Tensor] = {}
    described: dict[str, Any] = {}
    for name, table in tables.items():
        file = f"tables/{quote(name, safe='')}.parquet"
        table.export(directory / file)
        rows[f"{name}.ids"], rows[f"{name}.rows"] = _sorted_rows(table)
        described[name] = {**_rule(table), "rows": len(rows[f"{name}.ids"]), "file": file}
    save_file(rows, directory / ROWS)
    if chain.origin is not None:
        save_file(_apart(chain.module_state_dict()), directory / MODULE)
    if example is not None:
        save_file(example_tensors(example), directory / EXAMPLE)
    layers = [
        {"name": layer.name, "kind": layer.kind, "reads": layer.reads, "writes": layer.writes} for layer in chain.layers
    ]
    document = {
        "format": FORMAT, "model": {"name": model, "args": {}} if isinstance(model, str) else model,
        "score": chain.score, "layers": layers, "tables": described,
    }  # fmt: skip
    (directory / DESCRIPTION).write_text(json.dumps(document, indent=1) + "\n")
    for written in directory.rglob("*.*"):
        shutil.copymode(directory / DESCRIPTION, written)  # some writers leave files that only their owner may read


def _apart(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each weight in memory of its own: weights that layers share are written once for each name."""
    seen: set[int] = set()
    own = {}
    for name, value in weights.items():
        own[name] = (value.clone() if value.data_ptr() in seen else value).detach().cpu().contiguous()
        seen.add(value.data_ptr())
    return own


def _sorted_rows(table: SparseTable) -> tuple[Tensor, Tensor]:
    """Ids in order, and the row that inference reads for each."""
    parts = [ids for ids, _, _ in table.scan()]
    ids = torch.from_numpy(np.sort(np.concatenate(parts)) if parts else np.empty(0, np.int64))
    return ids, torch.as_tensor(table.pull(ids, create=False))


def _rule(table: SparseTable) -> dict[str, Any]:
    """What ids without a row read as."""
    config = table.config
    unseen = "zeros" if config.admit_after > 1 else "first_value"
    return {"dim": config.dim, "seed": config.seed, "init_scale": config.init_scale, "unseen": unseen}
