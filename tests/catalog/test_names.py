"""Names, short names and filters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.catalog import Catalog, Entry, load
from heterps.errors import InvalidInput


def entry(name: str, price: float, **fields: object) -> Entry:
    usual = {"device": "cuda", "accelerator": "H100", "peak_fp32_flops_per_s": 1e12, "memory_bytes_per_s": 1e12}
    return Entry(**{**usual, "name": name, "price_per_hour": price, **fields})


def test_a_gpu_model_stands_for_its_cheapest_offer() -> None:
    catalog = load()
    for model in ("h200", "v100", "t4", "a10g", "l4", "l40s", "a100", "a100-80gb", "h100", "p100"):
        offers = catalog.find(accelerator=model)
        assert catalog.get(model).price_per_hour == min(offer.price_per_hour for offer in offers), model
    assert catalog.get("a100") == catalog.get("a100-40gb") == catalog.get("A100")
    assert catalog.get("a100").accelerator == "A100-40GB"
    assert catalog.get("cpu").name == "aws-c7i-core"


def test_of_equal_prices_the_smaller_instance_counts() -> None:
    assert load().get("h100").instance == "p5.4xlarge"


def test_spot_chooses_by_spot_prices_and_needs_one() -> None:
    catalog = load()
    assert catalog.get("h100", spot=True).name == "aws-p5-h100", "the smaller instance lists no spot price"
    with pytest.raises(InvalidInput, match="'aws-p5-4xlarge-h100' lists no spot price"):
        catalog.get("aws-p5-4xlarge-h100", spot=True)
    with pytest.raises(InvalidInput, match="'mine' lists no spot price"):
        Catalog([entry("other", 1.0, accelerator="mine")]).get("mine", spot=True)


def test_an_entry_goes_before_a_short_name() -> None:
    catalog = Catalog([*load(), entry("h100", 99.0), entry("cpu", 1.0, device="cpu", accelerator=None)])
    assert catalog.get("h100").price_per_hour == 99.0
    assert catalog.get("cpu").price_per_hour == 1.0
    assert not {"h100", "cpu"} & catalog.short_names().keys()


def test_cpu_without_the_default_is_the_cheapest() -> None:
    cores = [entry(name, price, device="cpu", accelerator=None) for name, price in (("a", 2.0), ("b", 1.0))]
    assert Catalog([*cores, entry("gpu", 0.1)]).get("cpu").name == "b"


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(InvalidInput, match=r"'aws-g5-a10' is not in the catalog. Did you mean 'aws-g5-a10g'\?"):
        load().get("aws-g5-a10")
    with pytest.raises(InvalidInput, match="`heterps catalog` lists the names"):
        load().get("abacus")
    with pytest.raises(InvalidInput, match="'cpu' is not in the catalog"):
        Catalog([]).get("cpu")


def test_filters() -> None:
    catalog = load()
    assert {e.name for e in catalog.find("P5", device="cuda")} == {
        "aws-p5-h100",
        "aws-p5-4xlarge-h100",
        "aws-p5en-h200",
    }
    assert {e.provider for e in catalog.find(provider="GCP")} == {"gcp"}
    assert {e.units for e in catalog.find(units="8")} == {e.units for e in catalog.find(units=8)} == {8}
    assert catalog.find(units="many") == [] == catalog.find("no such thing")
    assert len(catalog.find()) == len(catalog) == len(list(catalog))
    with pytest.raises(InvalidInput, match=r"no field 'devise'. Did you mean 'device'\?"):
        catalog.find(devise="cpu")


@given(prices=st.lists(st.tuples(st.floats(0.01, 100), st.none() | st.floats(0.01, 100)), min_size=1, max_size=6))
def test_the_cheapest_is_found_in_any_order(prices: list[tuple[float, float | None]]) -> None:
    entries = [entry(f"e{i}", price, spot_price_per_hour=spot) for i, (price, spot) in enumerate(prices)]
    for catalog in (Catalog(entries), Catalog(reversed(entries))):
        assert catalog.get("h100").price_per_hour == min(price for price, _ in prices)
        if spots := [spot for _, spot in prices if spot is not None]:
            assert catalog.get("h100", spot=True).spot_price_per_hour == min(spots)
