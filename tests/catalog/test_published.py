"""The data that ships: complete, dated, and equal to what the sources list."""

from __future__ import annotations

import re

import pytest

from heterps.catalog import Entry, load


def test_every_figure_says_when_and_where_it_comes_from() -> None:
    entries = list(load())
    assert len(entries) == 25
    for entry in entries:
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry.price_date or ""), entry.name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry.rates_date or ""), entry.name
        assert entry.price_source.startswith("SkyPilot"), entry.name
        assert re.match("published|assumed", entry.rates_source), entry.name
        assert re.match("published|assumed", entry.bandwidth_source), entry.name
        assert None not in (entry.region, entry.memory_gb, entry.bandwidth_gbps), entry.name


def test_a_gpu_has_a_bus_and_a_cpu_has_none() -> None:
    for entry in load():
        assert (entry.device == "cuda") == (entry.accelerator is not None) == (entry.bus_bytes_per_s is not None)


@pytest.mark.parametrize(
    ("name", "price", "spot", "memory_gb", "bandwidth_gbps"),
    [
        ("aws-c7i-core", 0.714 / 16, 0.122 / 16, 32 * 2**30 / 1e9 / 16, 6.25 / 16),
        ("aws-g5-a10g", 1.006, 0.967, 24, 2.5),
        ("aws-p5en-h200", 63.296 / 8, 27.369 / 8, 141, 400),
        ("aws-p4de-a100-80gb", 27.447 / 8, None, 80, 50),
        ("gcp-v100", 2.480 + 0.380, 1.357 + 0.380, 16, 16),  # the accelerator and its host are listed apart
        ("gcp-a3-h200", (12.266 + 74.494) / 8, (7.359 + 43.021) / 8, 141, 450),
    ],
)
def test_figures_are_of_one_unit_with_its_host(
    name: str, price: float, spot: float | None, memory_gb: float, bandwidth_gbps: float
) -> None:
    entry = load().get(name)
    assert entry.price_per_hour == pytest.approx(price)
    assert entry.spot_price_per_hour == (pytest.approx(spot) if spot is not None else None)
    assert entry.memory_gb == pytest.approx(memory_gb)
    assert entry.bandwidth_gbps == pytest.approx(bandwidth_gbps)


def test_rates_of_a_gpu_are_the_data_sheets() -> None:
    h200 = load().get("aws-p5en-h200")
    assert (h200.peak_fp32_flops_per_s, h200.peak_bf16_flops_per_s) == (67e12, 990e12)
    assert (h200.memory_bytes_per_s, h200.bus_bytes_per_s) == (4.8e12, 63e9)
    v100 = load().get("gcp-v100")
    assert v100.peak_bf16_flops_per_s is None, "its tensor units know float16 only"
    assert v100.peak_fp16_flops_per_s == 125e12


def test_an_entry_is_frozen_and_refuses_nonsense() -> None:
    entry = load().get("h200")
    with pytest.raises(ValueError, match="frozen"):
        entry.units = 3  # type: ignore[misc]
    with pytest.raises(ValueError, match="price_per_hour"):
        Entry(**{**entry.model_dump(), "price_per_hour": 0.0})
