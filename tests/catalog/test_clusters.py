"""Clusters made of catalog names."""

from __future__ import annotations

import pytest

from heterps.catalog import cluster_of, load
from heterps.errors import InvalidInput
from heterps.plan import Cluster


def test_types_keep_the_names_given() -> None:
    cluster = cluster_of(["cpu:480", "h200:8", "aws-g5-a10g"])
    assert list(cluster.types) == ["cpu", "h200", "aws-g5-a10g"]
    h200, entry = cluster.types["h200"], load().get("aws-p5en-h200")
    assert (h200.device, h200.price_per_hour, h200.limit) == ("cuda", entry.price_per_hour, 8)
    assert (h200.memory_gb, h200.bandwidth_gbps) == (141, 400)
    assert cluster.types["aws-g5-a10g"].limit is None
    assert cluster.parameter_server == "cpu"


def test_it_is_a_cluster_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("cluster") / "cluster.yaml"
    cluster = cluster_of(["t4", "gcp-n2-core"], limits={"t4": 4})
    cluster.save(path)
    assert Cluster.load(path) == cluster
    assert (cluster.types["t4"].limit, cluster.parameter_server) == (4, "gcp-n2-core")
    assert cluster_of(["t4"]).parameter_server is None


def test_limits_go_before_those_written_with_names() -> None:
    assert cluster_of(["t4:2"], limits={"t4": 5}).types["t4"].limit == 5


def test_spot_prices() -> None:
    assert cluster_of(["h100"], spot=True).types["h100"].price_per_hour == pytest.approx(20.285 / 8)
    with pytest.raises(InvalidInput, match="lists no spot price"):
        cluster_of(["aws-p4de-a100-80gb"], spot=True)


@pytest.mark.parametrize(
    ("names", "limits", "message"),
    [
        ([], None, "needs a list"),
        ("cpu", None, "needs a list"),
        (["h200", "h200:8"], None, "'h200' is named twice"),
        (["h200:many"], None, "must be a whole number"),
        (["h200:"], None, "must be a whole number"),
        (["h200:0"], None, "the limit of 'h200' is 0"),
        (["h200:-1"], None, "must be a whole number"),
        (["h200"], {"h200": 0}, "the limit of 'h200' is 0"),
        (["h200"], {"h100": 2}, r"limits names 'h100', which is not among h200. Did you mean 'h200'\?"),
        (["h2000"], None, r"Did you mean 'h200'\?"),
    ],
)
def test_bad_input_is_explained(names: list[str], limits: dict[str, int] | None, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        cluster_of(names, limits=limits)
