"""`heterps.train(engine="ray")`: a chain and data of this process, sent to those of the cluster."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from heterps.errors import InvalidInput
from heterps.models import Chain
from heterps.plan import Plan
from heterps.runtime.checkpoint import Checkpoints, Store
from heterps.runtime.cluster._ray import pickled, ray, unpickled
from heterps.runtime.cluster.engine import train_on_ray
from heterps.runtime.result import Result
from heterps.runtime.settings import Settings


def train_sent(
    chain: Chain, data: Any, plan: Plan, settings: Settings, *, address: str | None = None, **options: Any
) -> Result:
    """Trains as `train_on_ray`, whose options these are; without checkpoints, Ray must be started here for it."""
    with ExitStack() as stack:
        if settings.checkpoints is None:
            if address is not None or ray.is_initialized():
                raise InvalidInput("engine ray needs checkpoints: a directory that all machines reach, or a URL")
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="heterps-"))
            settings = replace(settings, checkpoints=Checkpoints(path=folder))
        assert settings.checkpoints is not None
        if any(layer.table is not None for layer in chain.embeddings) and Store(settings.checkpoints).newest() is None:
            raise InvalidInput(
                "the chain has tables in this process already, and engine ray makes its own: give a new chain, or the "
                "checkpoints of the run that trained it"
            )
        factory = partial(unpickled, _packed(chain, data))
        return train_on_ray(chain, factory, plan, settings, address=address, **options)


def _packed(chain: Chain, data: Any) -> bytes:
    """The chain, without its tables, and the data; equal wherever they are unpacked."""
    bound = [(layer, layer.table) for layer in chain.embeddings]
    try:
        for layer, _ in bound:
            layer.table = None
        return pickled((chain, data))
    except (TypeError, AttributeError) as error:
        raise InvalidInput(
            f"engine ray sends the model and the data to other processes, and these cannot be sent: {error}; give a "
            "heterps.data source, or a list of batches"
        ) from None
    finally:
        for layer, table in bound:
            layer.table = table
