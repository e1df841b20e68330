"""The ways of rows that a GPU takes, on the CPU: they are tensor operations, and the same on any device."""

from __future__ import annotations

from functools import partial

import pytest

from heterps.models.layer import SparseEmbedding
from heterps.runtime import build
from heterps.runtime.exchange import Exchange
from heterps.runtime.placement import StageSpec
from heterps.runtime.rows import DistinctRows


class _OnDevice(build._Context):
    """Tables lie in the memory of their stage's device, if no other stage uses them."""

    def _lives_on(self, spec: StageSpec, table: str) -> bool:
        own = self._layers(spec)
        return all(layer in own for layer in self.chain.embeddings if layer.table_name == table)


class _Crossing(build._Context):
    """Rows cross to the next stage as distinct ones, as they do to a GPU, wherever only that stage reads them."""

    def _only_crosses(self, spec: StageSpec, layer: SparseEmbedding) -> bool:
        if spec.number + 1 == len(self.specs) or layer.pooling is not None:
            return False
        written = layer.writes[0]
        readers = [number for number, other in enumerate(self.chain.layers) if written in other.reads]
        own = all(number > spec.last for number in readers)
        return own and written not in self.chain.alive(self.specs[spec.number + 1].last + 1)


@pytest.fixture(params=["device", "distinct"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which way the rows of the test's runs take."""
    if request.param == "device":
        monkeypatch.setattr(build, "_Context", _OnDevice)
    else:
        monkeypatch.setattr(build, "_Context", _Crossing)
        monkeypatch.setattr(build, "DistinctRows", partial(DistinctRows, pin=False))
        monkeypatch.setattr(build, "Exchange", partial(Exchange, pin=False))
    return str(request.param)
