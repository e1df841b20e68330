"""SkyPilot's price tables, as they lie on disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps.catalog import load
from heterps.catalog.parts import published
from heterps.catalog.sky import with_sky

NEW, OLD = 1_798_761_600, 1_700_000_000
"""2027-01-01 and 2023-11-14, in seconds since 1970."""

AWS = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
c7i.4xlarge,,,16.0,32.0,,0.8,0.4,us-east-1,use1-az1,x86_64
c7i.4xlarge,,,16.0,32.0,,0.8,0.32,us-east-1,use1-az2,x86_64
c7i.4xlarge,,,16.0,32.0,,0.1,0.01,eu-west-1,euw1-az1,x86_64
p5en.48xlarge,H200,8.0,192.0,2048.0,"{'Gpus': [{'Name': 'H200'}]}",80.0,,us-east-1,use1-az1,x86_64
g6.xlarge,L4,1.0,4.0,16.0,,,0.5,us-east-1,use1-az1,x86_64
p3.2xlarge,V100,1.0,8.0,61.0,,3.06,1.0,us-east-1,use1-az1,x86_64
p3.8xlarge,V100,4.0,32.0,244.0,,12.24,2.0,us-east-1,use1-az1,x86_64
p3.2xlarge,V100,1.0,8.0,61.0,,0.5,0.1,eu-west-1,euw1-az1,x86_64
trn1.2xlarge,Trainium,1.0,8.0,32.0,,1.34,0.5,us-east-1,use1-az1,x86_64
"""

GCP = """\
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
a2-highgpu-1g,12.0,85.0,,,,us-central1,us-central1-a,0.7,0.3
,,,A100,1.0,A100,us-central1,us-central1-a,2.0,1.0
,,,A100,8.0,A100,us-central1,us-central1-a,16.0,8.0
n1-standard-8,8.0,30.0,,,,us-central1,us-central1-a,0.4,0.1
,,,V100,1.0,V100,us-central1,us-central1-a,2.5,700.0
,,,T4,1.0,T4,europe-west4,europe-west4-a,0.1,0.1
"""


def put(root: Path, cloud: str, text: str, *, version: str = "v8", when: int = NEW) -> Path:
    path = root / ".sky/catalogs" / version / cloud / "vms.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (when, when))
    return path


def test_newer_prices_replace_ours(home: Path) -> None:
    put(home, "aws", AWS)
    core = load().get("aws-c7i-core")
    assert core.price_per_hour == pytest.approx(0.8 / 16)
    assert core.spot_price_per_hour == pytest.approx(0.32 / 16), "the lowest zone of our region"
    assert (core.price_date, core.price_source) == ("2027-01-01", "SkyPilot catalog on this machine")
    h200 = load().get("aws-p5en-h200")
    assert (h200.price_per_hour, h200.spot_price_per_hour) == (10.0, None)
    assert load().get("aws-g6-l4").price_date == "2026-08-22", "no price, no change"
    assert load().get("aws-g5-a10g").price_date == "2026-08-22", "not in the table"


def test_older_prices_do_not(home: Path) -> None:
    put(home, "aws", AWS, when=OLD)
    assert load().get("aws-c7i-core").price_per_hour == pytest.approx(0.714 / 16)


def test_a_host_and_its_accelerators_listed_apart_are_added_up(home: Path) -> None:
    put(home, "gcp", GCP)
    catalog = load()
    a100 = catalog.get("gcp-a2-a100")
    assert (a100.price_per_hour, a100.spot_price_per_hour) == (pytest.approx(2.7), pytest.approx(1.3))
    v100 = catalog.get("gcp-v100")
    assert v100.price_per_hour == pytest.approx(2.9)
    assert v100.spot_price_per_hour is None, "700 dollars stand for a price that is not known"
    assert catalog.get("gcp-t4").price_date == "2026-08-22", "another region's"


def test_the_cheapest_offer_of_a_known_gpu_joins(home: Path) -> None:
    put(home, "aws", AWS)
    put(home, "lambda", "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\ngpu_8x,H100,8,24,utah\n", when=OLD)
    catalog = load()
    added = {entry.name for entry in catalog} - {entry.name for entry in published()}
    assert added == {"aws-v100", "lambda-h100"}, "neither what we have nor what we know no rates of"
    v100 = catalog.get("aws-v100")
    assert (v100.instance, v100.region, v100.units) == ("p3.2xlarge", "us-east-1", 1)
    assert (v100.price_per_hour, v100.spot_price_per_hour) == (3.06, 1.0)
    assert v100.bandwidth_source.startswith("assumed")
    h100 = catalog.get("lambda-h100")
    assert (h100.price_per_hour, h100.units, h100.price_date) == (3.0, 8, "2023-11-14")
    assert catalog.get("h100").name == "lambda-h100"


def test_the_newest_version_counts(home: Path) -> None:
    put(home, "aws", AWS.replace(",0.8,", ",0.16,"), version="v10")
    put(home, "aws", AWS, version="v9")
    put(home, "aws", AWS.replace(",0.8,", ",9,"), version="vold")
    assert load().get("aws-c7i-core").price_per_hour == pytest.approx(0.01)


def test_the_tables_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "else", "aws", AWS)
    monkeypatch.setenv("SKY_RUNTIME_DIR", str(tmp_path / "else"))
    assert load().get("aws-c7i-core").price_per_hour == pytest.approx(0.05)


def test_own_entries_go_before_the_tables(home: Path, tmp_path: Path) -> None:
    put(home, "aws", AWS)
    own = tmp_path / "own.yaml"
    own.write_text("types: {aws-p5en-h200: {accelerator: h200, price_per_hour: 7}}")
    assert load(extra=[own]).get("aws-p5en-h200").price_per_hour == 7


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "InstanceType,Price\nc7i.4xlarge,0.1\n",  # no region
        "Region\nus-east-1\n",
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\nx,A10G,0.5,1,us-east-1\nx,A10G,,1,us-east-1\n",
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\nx,A10G,2.5,1,us-east-1\n",
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\nx,A10G,1,nan,a\nx,A10G,1,-1,a\nx,A10G,1,inf,a\n",
        "InstanceType,AcceleratorName,AcceleratorCount,Price,Region\nx,A10G\n,,,,,,,,,,\n",
        "\x00\ufffd\x00",
    ],
)
def test_what_cannot_be_understood_is_passed_over(home: Path, text: str) -> None:
    put(home, "aws", text)
    assert list(load()) == list(published())


def test_a_table_that_cannot_be_read_is_passed_over(home: Path) -> None:
    (home / ".sky/catalogs/v8/aws/vms.csv").mkdir(parents=True)
    (home / ".sky/catalogs/v8/Odd Name").mkdir()
    assert list(load()) == list(published())


@given(
    cells=st.lists(
        st.lists(st.sampled_from(["", "V100", "1", "2.0", "-3", "us-east-1", "c7i.4xlarge", "x"]), max_size=9)
    )
)
def test_any_rows_leave_a_valid_catalog(tmp_path_factory: pytest.TempPathFactory, cells: list[list[str]]) -> None:
    root = tmp_path_factory.mktemp("sky")
    put(root, "aws", "\n".join([AWS.splitlines()[0], *(",".join(row) for row in cells)]))
    entries = with_sky(published(), root=root / ".sky")
    assert {entry.name for entry in published()} <= {entry.name for entry in entries}
    assert all(entry.price_per_hour > 0 and (entry.spot_price_per_hour or 1) > 0 for entry in entries)
