"""Where entries come from: the package, SkyPilot's tables, the user's own files. A later source replaces a name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from heterps.catalog.collection import Catalog
from heterps.catalog.own import read_own
from heterps.catalog.parts import published
from heterps.catalog.sky import with_sky

OWN_VARIABLE = "HETERPS_CATALOG"
OWN_FILE = Path(".config/heterps/catalog.yaml")
"""Of the user's own entries, in the home directory, unless the variable names another file."""

SKY_VARIABLE = "SKY_RUNTIME_DIR"
"""Where SkyPilot keeps `.sky`, if not in the home directory."""


def load(*, extra: Sequence[Path] = ()) -> Catalog:
    """The whole catalog.

    First what the package ships; then SkyPilot's tables, with newer prices and more offers; then the user's own entries
    (`$HETERPS_CATALOG`, or `~/.config/heterps/catalog.yaml` if it is there); then `extra` files, in their order.

    Raises:
        InvalidInput: for a file of the user's that cannot be read or breaks a rule.
    """
    entries = with_sky(published(), root=Path(os.environ.get(SKY_VARIABLE) or Path.home()).expanduser() / ".sky")
    own = [entry for path in [*_own_files(), *extra] for entry in read_own(path)]
    return Catalog([*entries, *own])


def _own_files() -> list[Path]:
    if named := os.environ.get(OWN_VARIABLE):
        return [Path(named).expanduser()]
    usual = Path.home() / OWN_FILE
    return [usual] if usual.exists() else []
