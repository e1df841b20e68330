"""The order of tests: what takes longest starts first, so that nothing long runs alone at the end."""

from __future__ import annotations

import pytest

FIRST = (
    "cluster/test_operations", "cluster/test_faults", "cluster/test_ray", "cli/test_run", "cluster/test_shrinking",
    "cluster/test_counters", "cluster/test_security", "native/test_sanitizers", "runtime/test_equality",
    "runtime/test_checkpoint_storage", "contracts/test_tables", "cli/test_train",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files of FIRST before all others; xdist gives out files in this order (`--no-loadscope-reorder`)."""
    ranks = {f"tests/{name}.py": rank for rank, name in enumerate(FIRST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))
