"""The catalog: entries by name, short names for GPU models, and filters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from heterps.catalog.entry import Entry
from heterps.catalog.parts import find_gpu, processors
from heterps.errors import InvalidInput, did_you_mean

DEFAULT_CPU = "aws-c7i-core"
"""What `cpu` stands for, assumed to be a fair core to plan with: a current server processor, near the lowest price."""


class Catalog:
    """Entries in the order they were given; of two with one name the later one counts.

    A short name stands for an entry: `cpu` for `aws-c7i-core` (without it, for the cheapest CPU), and the model of a
    GPU (`h200`, `a100-80gb`, in any case) for the cheapest offer with it. An entry that has such a name goes before.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = {entry.name: entry for entry in entries}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def get(self, name: str, *, spot: bool = False) -> Entry:
        """The entry of a name or short name; with `spot`, one that lists a spot price, by which the cheapest is chosen.

        Raises:
            InvalidInput: for a name that there is not, or an entry without a spot price where one is asked for.
        """
        found = self._entries.get(name) or self._short(name, spot=spot)
        if found is None:
            known = {*self._entries, *self.short_names()}
            hint = did_you_mean(name, known) or " `heterps catalog` lists the names."
            raise InvalidInput(f"{name!r} is not in the catalog.{hint}")
        if found.price(spot=spot) is None:
            raise InvalidInput(f"{name!r} lists no spot price; plan with its on-demand price, or choose another offer")
        return found

    def short_names(self, *, spot: bool = False) -> dict[str, str]:
        """Short name -> the name of the entry it stands for."""
        gpus = [alias for part in processors().values() for alias in part.aliases]
        own = [entry.accelerator.lower() for entry in self if entry.accelerator is not None]
        found = {name: self._short(name, spot=spot) for name in dict.fromkeys(["cpu", *gpus, *own])}
        return {name: entry.name for name, entry in found.items() if entry is not None and name not in self}

    def find(self, *words: str, **filters: object) -> list[Entry]:
        """Entries in which every word occurs (in name, provider, instance, GPU or region) and every field equals.

        Text is compared in any case, GPUs by any of their names: `find("us-east", device="cuda", accelerator="a100")`.

        Raises:
            InvalidInput: for a field that entries do not have.
        """
        for key in filters:
            if key not in Entry.model_fields:
                hint = did_you_mean(key, Entry.model_fields) or f" They are {', '.join(Entry.model_fields)}."
                raise InvalidInput(f"entries of the catalog have no field {key!r}.{hint}")
        return [
            entry
            for entry in self
            if all(_mentions(entry, word) for word in words)
            and all(_equals(key, getattr(entry, key), value) for key, value in filters.items())
        ]

    def _short(self, name: str, *, spot: bool) -> Entry | None:
        if name == "cpu":
            default = self._entries.get(DEFAULT_CPU)
            if default is not None and default.price(spot=spot) is not None:
                return default
            return _cheapest([entry for entry in self if entry.device == "cpu"], spot=spot)
        return _cheapest(self.find(accelerator=name), spot=spot)


def _cheapest(entries: list[Entry], *, spot: bool) -> Entry | None:
    """The lowest price; of equal ones the smaller instance, as instances are rented whole. Listed prices go first."""

    def order(entry: Entry) -> tuple[bool, float, int, str]:
        price = entry.price(spot=spot)
        return price is None, price or 0.0, entry.units, entry.name

    return min(entries, key=order, default=None)


def _mentions(entry: Entry, word: str) -> bool:
    texts = (entry.name, entry.device, entry.provider, entry.instance, entry.accelerator or "", entry.region or "")
    return any(word.lower() in text.lower() for text in texts)


def _equals(key: str, has: object, wanted: object) -> bool:
    if isinstance(has, int | float) and not isinstance(wanted, int | float):
        try:
            return has == float(str(wanted))
        except ValueError:
            return False
    if isinstance(has, str) and isinstance(wanted, str):
        return _model(has) == _model(wanted) if key == "accelerator" else has.lower() == wanted.lower()
    return has == wanted


def _model(name: str) -> str:
    """One spelling for all names of a GPU."""
    part = find_gpu(name)
    return (part.model if part is not None else name).lower()
