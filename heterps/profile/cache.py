"""Measurements kept from run to run, under what they depend on: model, data's shape, how it is trained, hardware."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from contextlib import suppress
from pathlib import Path

from heterps.errors import InvalidInput
from heterps.models import Chain
from heterps.models.batch import Bags, Batch
from heterps.profile.hardware import Hardware
from heterps.profile.measurement import Measurement
from heterps.runtime.settings import Settings

VERSION = 1
"""Of what is measured and how: one more when earlier measurements mean something else."""


def cache_directory() -> Path:
    """`$HETERPS_CACHE`, or `heterps` in the user's cache directory."""
    own = os.environ.get("HETERPS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(own) if own else (Path(base) if base else Path.home() / ".cache") / "heterps"


def measurement_key(chain: Chain, batch: Batch, settings: Settings, hardware: Hardware, *, source: str = "") -> str:
    """The same for the same model, shape of data, way of training and hardware. A model's code is seen by its layers,
    their modules and weights' shapes; rows of the data by the shapes of a batch, reading them by the kind of `source`.
    """  # noqa: D205
    layers = [(layer.name, layer.kind, repr(layer), layer.reads, layer.writes) for layer in chain.layers]
    weights = [
        (name, tuple(value.shape), str(value.dtype), value.requires_grad) for name, value in chain.named_parameters()
    ]
    tables = [sorted((key, str(value)) for key, value in layer.options.items()) for layer in chain.embeddings]
    shapes = [
        (name, "bags", value.slots) if isinstance(value, Bags) else (name, tuple(value.shape[1:]), str(value.dtype))
        for name, value in sorted(batch.items())
    ]
    optimizer = settings.optimizer if isinstance(settings.optimizer, str) else "own"
    ways = (settings.batch_size, settings.micro_batches, settings.precision, optimizer, settings.steps_ahead, source)
    whole = [VERSION, chain.name, layers, weights, tables, shapes, ways, hardware.identity]
    return hashlib.sha256(json.dumps(whole, default=str).encode()).hexdigest()[:32]


def load_measurement(key: str) -> Measurement | None:
    """What is kept under a key; None if there is nothing, or nothing that can be read."""
    with suppress(InvalidInput, OSError):
        path = _path(key)
        return Measurement.load(path) if path.is_file() else None
    return None


def save_measurement(measured: Measurement) -> Path:
    """Keeps a measurement under its key, in place of an earlier one; gives the file."""
    path = _path(measured.key)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")  # whoever is last replaces the whole file
    measured.save(new)
    new.replace(path)
    return path


def _path(key: str) -> Path:
    return cache_directory() / "measurements" / f"{key}.json"
