"""`heterps catalog`: the resource types that are known, with prices and rates."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING, Annotated

import typer

from heterps.cli import options as o
from heterps.errors import InvalidInput
from heterps.units import GIGA

if TYPE_CHECKING:
    from heterps.catalog import Catalog, Entry

TERA = 1e12
WIDE = 116
"""Columns of a terminal that has room for all of the table's."""

LEGEND = (
    "For one unit (a GPU with its host's share, or a vCPU): GB of memory, link in Gb/s, peaks in TFLOP/s, memory in "
    "GB/s. Instances are rented whole. --json adds units, region and the source of each figure."
)


def catalog(
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="TEXT|KEY=VALUE",
            help="Only types that mention TEXT, or whose KEY is VALUE; repeatable.",
        ),
    ] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Spot prices; only types that list one.")] = False,
    json: o.Json = False,
) -> None:
    """List the catalog's resource types, cheapest unit first: a unit is one GPU with its host's share, or one vCPU."""
    from heterps.catalog import load

    known = load()
    found = _select(known, filters or [])
    listed = sorted((e for e in found if e.price(spot=spot) is not None), key=lambda e: (e.price(spot=spot), e.name))
    if not listed:
        raise InvalidInput(_no_match(known, filters or [], found=len(found)))
    if json:
        typer.echo(jsonlib.dumps([entry.to_dict() for entry in listed], indent=1))
        return
    _show(known, listed, spot=spot)


def _select(known: Catalog, filters: list[str]) -> list[Entry]:
    words = [text for text in filters if "=" not in text]
    pairs = [text.partition("=") for text in filters if "=" in text]
    found = known.find(*words)
    for key, _, value in pairs:  # one by one: a key may be given twice, and then nothing matches
        matching = known.find(**{key.strip().replace("-", "_"): value.strip()})
        found = [entry for entry in found if entry in matching]
    return found


def _no_match(known: Catalog, filters: list[str], *, found: int) -> str:
    asked = " and ".join(map(repr, filters))
    if found:
        return (
            f"none of the {found} types{f' that match {asked}' if asked else ''} lists a spot price; leave out --spot"
        )
    providers = ", ".join(sorted({entry.provider for entry in known}))
    gpus = ", ".join(sorted({entry.accelerator for entry in known if entry.accelerator}))
    return f"no type of the catalog matches {asked}; providers are {providers}, GPUs are {gpus}"


def _show(known: Catalog, listed: list[Entry], *, spot: bool) -> None:
    from rich.console import Console

    from heterps.report.tables import table
    from heterps.units import format_usd

    console = Console(markup=False, emoji=False)
    title = f"{len(listed)} of {len(known)} resource types{_days(listed)}"
    columns = ["name", "instance", "spot $/h" if spot else "$/h", "GB", "link", "fp32", "bf16", "memory"]
    wide = console.width >= WIDE
    made = table(title, *columns, *(["units", "region", "prices of"] if wide else []), left=2)
    for entry in listed:
        price = entry.price(spot=spot)
        assert price is not None
        cells = [
            entry.name, entry.instance, format_usd(price), _figure(entry.memory_gb), _figure(entry.bandwidth_gbps),
            _figure(entry.peak_fp32_flops_per_s, TERA), _figure(entry.peak_bf16_flops_per_s, TERA),
            _figure(entry.memory_bytes_per_s, GIGA),
        ]  # fmt: skip
        made.add_row(*cells, *([str(entry.units), entry.region or "", entry.price_date or ""] if wide else []))
    console.print(made)
    names = {entry.name for entry in listed}
    short = [f"{alias} = {name}" for alias, name in known.short_names(spot=spot).items() if name in names]
    if short:
        console.print(f"short names: {', '.join(short)}", highlight=False, markup=False)
    console.print(LEGEND, highlight=False, markup=False)


def _days(listed: list[Entry]) -> str:
    days = sorted({entry.price_date for entry in listed if entry.price_date is not None})
    return f", prices of {' to '.join(dict.fromkeys((days[0], days[-1])))}" if days else ""


def _figure(value: float | None, scale: float = 1.0) -> str:
    """Two or three digits, or a dash for what is not known or not there."""
    if value is None:
        return "–"
    number = value / scale
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}" if number >= 10 else f"{number:.2g}"
