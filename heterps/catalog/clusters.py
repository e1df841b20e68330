"""Clusters made of catalog names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heterps.catalog.collection import Catalog
from heterps.catalog.loading import load
from heterps.errors import InvalidInput, did_you_mean
from heterps.plan import Cluster


def cluster_of(
    names: Sequence[str],
    *,
    spot: bool = False,
    limits: Mapping[str, int] | None = None,
    catalog: Catalog | None = None,
) -> Cluster:
    """The cluster that catalog names describe. Its types are called as they are here: a short name stays.

    Args:
        names: names or short names, each with a limit of units if written `name:limit`, as in `h200:8`.
        spot: take spot prices.
        limits: name -> limit of units; goes before one written with the name.
        catalog: where to look; what `load()` gives if left out.

    The first CPU type named serves the tables (`parameter_server`); it costs nothing where no layer uses it.

    Raises:
        InvalidInput: for no names, a name twice or one that there is not, and limits that are no whole numbers.
    """
    if isinstance(names, str) or not names:
        raise InvalidInput(f"a cluster needs a list of catalog names, such as [cpu, h200:8], not {names!r}")
    asked = [_split(name) for name in names]
    given = [name for name, _ in asked]
    if twice := [name for name in given if given.count(name) > 1]:
        raise InvalidInput(f"{twice[0]!r} is named twice; name each type once")
    for name in limits or {}:
        if name not in given:
            raise InvalidInput(
                f"limits names {name!r}, which is not among {', '.join(given)}.{did_you_mean(name, given)}"
            )
    catalog = load() if catalog is None else catalog
    entries = {name: catalog.get(name, spot=spot) for name in given}
    upper = {name: _checked(name, (limits or {}).get(name, limit)) for name, limit in asked}
    types = {name: entry.resource_type(spot=spot, limit=upper[name]) for name, entry in entries.items()}
    server = next((name for name, entry in entries.items() if entry.device == "cpu"), None)
    return Cluster(types=types, parameter_server=server)


def _split(text: str) -> tuple[str, int | None]:
    name, colon, limit = str(text).partition(":")
    if not colon:
        return name.strip(), None
    if not limit.strip().isdecimal():
        raise InvalidInput(f"{text!r}: the limit after the colon must be a whole number of 1 or more, as in {name}:8")
    return name.strip(), int(limit)


def _checked(name: str, limit: int | None) -> int | None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and 1 <= limit <= 2**53):
        return limit
    raise InvalidInput(f"the limit of {name!r} is {limit!r}; it must be a whole number of 1 or more, or left out")
