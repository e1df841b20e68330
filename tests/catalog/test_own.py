"""Entries that users add."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps.catalog import load
from heterps.errors import InvalidInput

WHOLE = """
types:
  lab-core:
    device: cpu
    provider: lab
    instance: rack 3
    units: 64
    price_per_hour: 0.01
    memory_gb: 4
    bandwidth_gbps: 1.5
    peak_fp32_flops_per_s: 8e10
    memory_bytes_per_s: 4e9
    price_date: 2026-10-01
    price_source: power bill
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_own_entries_come_from_the_usual_place(home: Path) -> None:
    write(home / ".config/heterps/catalog.yaml", WHOLE)
    entry = load().get("lab-core")
    assert (entry.device, entry.units, entry.price_per_hour, entry.peak_fp32_flops_per_s) == ("cpu", 64, 0.01, 8e10)
    assert (entry.price_date, entry.price_source, entry.rates_source) == ("2026-10-01", "power bill", "own")
    assert len(load()) == 26


def test_the_variable_names_another_file(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / ".config/heterps/catalog.yaml", WHOLE)
    monkeypatch.setenv("HETERPS_CATALOG", str(write(tmp_path / "mine.yaml", WHOLE.replace("lab-core", "mine"))))
    assert "mine" in load()
    assert "lab-core" not in load()
    monkeypatch.setenv("HETERPS_CATALOG", str(tmp_path / "missing.yaml"))
    with pytest.raises(InvalidInput, match=r"missing.yaml: cannot be read"):
        load()


def test_a_known_gpu_settles_rates_and_memory(tmp_path: Path) -> None:
    text = "types: {desk: {accelerator: l40s, price_per_hour: 0.2}}"
    entry = load(extra=[write(tmp_path / "own.yaml", text)]).get("desk")
    assert (entry.device, entry.accelerator, entry.memory_gb) == ("cuda", "L40S", 48)
    assert entry.peak_fp32_flops_per_s == 91.6e12
    assert entry.rates_source.startswith("published")
    assert entry.bandwidth_gbps is None, "a free link, as in a cluster"


def test_what_is_written_goes_before_what_the_gpu_settles(tmp_path: Path) -> None:
    text = "types: {desk: {accelerator: l40s, price_per_hour: 0.2, peak_fp32_flops_per_s: 1e12, memory_gb: 40}}"
    entry = load(extra=[write(tmp_path / "own.yaml", text)]).get("desk")
    assert (entry.peak_fp32_flops_per_s, entry.memory_gb, entry.memory_bytes_per_s) == (1e12, 40, 864e9)
    assert (entry.rates_source, entry.rates_date) == ("own", None)


def test_own_offers_count_for_short_names_and_replace_ours(tmp_path: Path) -> None:
    text = "types: {desk: {accelerator: h200, price_per_hour: 0.2}, gcp-v100: {accelerator: v100, price_per_hour: 9}}"
    catalog = load(extra=[write(tmp_path / "own.yaml", text)])
    assert catalog.get("h200").name == "desk"
    assert catalog.get("gcp-v100").price_per_hour == 9
    assert len(catalog) == 26


def test_later_files_replace_earlier_ones(tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{i}.yaml", f"types: {{desk: {{accelerator: t4, price_per_hour: {i}}}}}") for i in (1, 2)
    ]
    assert load(extra=files).get("desk").price_per_hour == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("price_per_hour: 0.01", "price_per_hour: -1"), "types.lab-core.price_per_hour = -1"),
        (("price_per_hour: 0.01", "price_per_hour: cheap"), "types.lab-core.price_per_hour = 'cheap'"),
        (("price_per_hour: 0.01", "region: here"), "types.lab-core.price_per_hour is missing"),
        (("device: cpu", "device: tpu"), "types.lab-core.device = 'tpu'"),
        (("device: cpu", "region: here"), "types.lab-core.device is missing"),
        (("units: 64", "units: 0"), "types.lab-core.units = 0"),
        (("units: 64", "unts: 64"), "unknown key 'unts'. Did you mean 'units'?"),
        (("units: 64", "colour: red"), "types.lab-core.colour = 'red': unknown key"),
        (("memory_bytes_per_s: 4e9", ""), "types.lab-core.memory_bytes_per_s is missing"),
        (("peak_fp32_flops_per_s: 8e10", "accelerator: Abacus"), "types.lab-core.peak_fp32_flops_per_s is missing"),
        (("price_date: 2026-10-01", "price_date: yesterday"), "types.lab-core.price_date = 'yesterday'"),
        (("lab-core:", "Lab Core:"), "types names 'Lab Core'"),
        (("lab-core:", "h200:8:"), "types names 'h200:8'"),
        (("types:", "kinds:"), "types is missing"),
        (("types:", "types: ["), "not valid YAML"),
    ],
)
def test_a_bad_file_gets_one_clear_message(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in WHOLE
    path = write(tmp_path / "own.yaml", WHOLE.replace(*change))
    with pytest.raises(InvalidInput) as error:
        load(extra=[path])
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
