"""Prices from the tables that SkyPilot keeps on disk: `.sky/catalogs/<version>/<cloud>/vms.csv`.

A row is one instance type in one zone, with its price, or (on GCP) an accelerator alone, without `InstanceType`, whose
price comes on top of its host's. Offers we know get the table's prices for their region where the table is newer than
ours. Of a GPU whose rates we know, the cheapest offer of each cloud joins as `<cloud>-<gpu>` if we do not have it: in
a region where we list that cloud's prices, if it is offered there, else in the cheapest one.

Columns and cells may be missing, and files may be anything: what cannot be understood is passed over. A price that is
not known is sometimes written as a very high one; a spot price above the on-demand one is therefore none.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from heterps.catalog.entry import NAME_PATTERN, Entry
from heterps.catalog.parts import find_gpu

SOURCE = "SkyPilot catalog on this machine"

ASSUMED_GBPS = 10.0
"""Gigabits a second of an instance that the tables add, as they say nothing of networks. Assumed."""


@dataclass(frozen=True, slots=True)
class Row:
    """An offer in one zone, prices in US dollars an hour for all of it. `gpu` is a model we know, None for no GPU."""

    instance: str
    gpu: str | None
    count: int
    region: str
    price: float
    spot: float | None


@dataclass(frozen=True, slots=True)
class Prices:
    """The lowest of several zones, in US dollars an hour."""

    price: float
    spot: float | None


def with_sky(entries: Iterable[Entry], *, root: Path) -> list[Entry]:
    """The entries with newer prices, and further offers after them; as they are where `root` holds no tables."""
    current = list(entries)
    for cloud, path in sorted(_tables(root / "catalogs").items()):
        ours = [entry for entry in current if entry.provider == cloud]
        try:
            date = datetime.fromtimestamp(path.stat().st_mtime, tz=UTC).date().isoformat()
            rows = _read(path, hosts={entry.instance for entry in ours})
        except (OSError, csv.Error):
            continue
        current = [_updated(entry, rows, date) if entry.provider == cloud else entry for entry in current]
        current += _further(ours, rows, cloud=cloud, date=date)
    return current


def _tables(catalogs: Path) -> dict[str, Path]:
    """Cloud -> its table, of the newest version that has one."""
    found = [path for path in catalogs.glob("v*/*/vms.csv") if re.fullmatch(r"v\d+", path.parts[-3])]
    found.sort(key=lambda path: int(path.parts[-3][1:]))
    return {path.parent.name: path for path in found if re.fullmatch(NAME_PATTERN, path.parent.name)}


def _read(path: Path, *, hosts: set[str]) -> list[Row]:
    """The rows of GPUs we know and of these hosts, as far as they make sense."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        rows = [_row(cells, hosts) for cells in csv.DictReader(file, restval="")]
    return [row for row in rows if row is not None]


def _row(cells: Mapping[str, str], hosts: set[str]) -> Row | None:
    instance, name = cells.get("InstanceType", ""), cells.get("AcceleratorName", "")
    gpu = find_gpu(name) if name else None
    price, count = _number(cells, "Price"), _number(cells, "AcceleratorCount") if name else 0.0
    if price is None or count is None or count != int(count):
        return None
    if (name and gpu is None) or (gpu is None and instance not in hosts):
        return None
    spot = _number(cells, "SpotPrice")
    return Row(
        instance=instance,
        gpu=gpu.model if gpu is not None else None,
        count=int(count),
        region=cells.get("Region", ""),
        price=price,
        spot=spot if spot is not None and spot <= price else None,
    )


def _number(cells: Mapping[str, str], column: str) -> float | None:
    """A number above 0, or None for whatever else the cell holds."""
    try:
        number = float(cells.get(column, ""))
    except ValueError:
        return None
    return number if math.isfinite(number) and number > 0 else None


def _updated(entry: Entry, rows: list[Row], date: str) -> Entry:
    found = _prices(entry, [row for row in rows if row.region == entry.region])
    if found is None or (entry.price_date is not None and date <= entry.price_date):
        return entry
    spot = found.spot / entry.units if found.spot is not None else None
    update = {"price_per_hour": found.price / entry.units, "spot_price_per_hour": spot}
    return entry.model_copy(update={**update, "price_date": date, "price_source": SOURCE})


def _prices(entry: Entry, rows: list[Row]) -> Prices | None:
    """Of the whole instance: listed with its GPUs, or as a host and its accelerators apart."""
    count = 0 if entry.accelerator is None else entry.units
    of_instance = [row for row in rows if row.instance == entry.instance]
    whole = _lowest(row for row in of_instance if (row.gpu, row.count) == (entry.accelerator, count))
    if whole is not None or entry.accelerator is None:
        return whole
    host = _lowest(row for row in of_instance if row.gpu is None)
    apart = _lowest(row for row in rows if (row.instance, row.gpu, row.count) == ("", entry.accelerator, count))
    if host is None or apart is None:
        return None
    spot = host.spot + apart.spot if host.spot is not None and apart.spot is not None else None
    return Prices(host.price + apart.price, spot)


def _lowest(rows: Iterable[Row]) -> Prices | None:
    found = list(rows)
    spots = [row.spot for row in found if row.spot is not None]
    return Prices(min(row.price for row in found), min(spots, default=None)) if found else None


def _further(ours: list[Entry], rows: list[Row], *, cloud: str, date: str) -> list[Entry]:
    """The cheapest offer of each GPU, unless it is one of ours."""
    home, taken = {entry.region for entry in ours}, {entry.name for entry in ours}
    further = []
    for model in sorted({row.gpu for row in rows if row.gpu is not None}):
        offers = [row for row in rows if row.gpu == model and row.instance and row.count]
        offers = [row for row in offers if row.region in home] or offers
        best = min(offers, key=lambda row: (row.price / row.count, row.count, row.instance, row.region), default=None)
        gpu = find_gpu(model)
        assert gpu is not None
        name = f"{cloud}-{gpu.aliases[0]}"
        if best is None or name in taken or (best.instance, model) in {(e.instance, e.accelerator) for e in ours}:
            continue
        spot = _lowest(row for row in offers if (row.instance, row.region) == (best.instance, best.region))
        fields = {
            **gpu.fields(),
            "name": name,
            "provider": cloud,
            "instance": best.instance,
            "units": best.count,
            "price_per_hour": best.price / best.count,
            "spot_price_per_hour": spot.spot / best.count if spot is not None and spot.spot is not None else None,
            "region": best.region or None,
            "bandwidth_gbps": ASSUMED_GBPS / best.count,
            "bandwidth_source": f"assumed: {ASSUMED_GBPS:g} Gb/s an instance",
            "price_date": date,
            "price_source": SOURCE,
        }
        further.append(Entry(**fields))
    return further
