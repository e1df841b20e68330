"""The order of tests: what takes longest starts first, so that nothing long runs alone at the end; and patience."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

PATIENCE_S = 150.0
"""What a test waits for at most before it calls it lost: machines may stand still for many seconds."""

# An example's time says what else the machine does: a test that is about time measures it itself.
# CI draws the same examples each time, so that a change fails for what it did; runs by hand look further.
settings.register_profile(
    "heterps", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="CI" in os.environ
)
settings.load_profile("heterps")

FIRST = (
    "cluster/test_operations", "cluster/test_faults", "cluster/test_ray", "cli/test_run", "cluster/test_shrinking",
    "cluster/test_counters", "cluster/test_security", "native/test_sanitizers", "runtime/test_equality",
    "runtime/test_checkpoint_storage", "contracts/test_tables", "cli/test_train",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of FIRST before all others; xdist gives out files in this order (`--no-loadscope-reorder`)."""
    ranks = {f"tests/{name}.py": rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


@pytest.fixture(scope="session", autouse=True)
def _patient_recorders() -> Iterator[None]:
    """Recorders give up on their sinks after seconds, as users want it; records that tests look at are waited for."""
    module = sys.modules.get("heterps.telemetry.recorder")
    with pytest.MonkeyPatch.context() as patch:
        if module is not None:
            for call in (module.Recorder.close, module.Recorder.flush):
                patch.setattr(call, "__defaults__", (PATIENCE_S,))
        yield
