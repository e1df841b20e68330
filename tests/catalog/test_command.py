"""`heterps catalog`."""

from __future__ import annotations

import json

import pytest
import typer
from typer.testing import CliRunner

from heterps.catalog import Entry
from heterps.cli.catalog import catalog
from heterps.errors import InvalidInput


def run(*args: str, columns: int = 80) -> str:
    app = typer.Typer()
    app.command()(catalog)
    done = CliRunner().invoke(app, args, env={"COLUMNS": str(columns)}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_table_fits_a_terminal_and_starts_with_the_cheapest() -> None:
    lines = run().splitlines()
    assert lines[0].startswith("25 of 25 resource types, prices of 2026-08-22")
    assert max(map(len, lines)) <= 80
    names = [line.split()[0] for line in lines[2:27]]
    assert (names[0], names[-1]) == ("aws-c6i-core", "gcp-a3-h100")
    assert "short names: cpu = aws-c7i-core" in lines[27]


def test_a_wide_terminal_shows_regions_and_dates() -> None:
    assert "us-east-2" not in run()
    assert "us-east-2" in run(columns=140)


def test_filters_narrow_it_down() -> None:
    out = run("--filter", "p5", "--filter", "units=8")
    assert "aws-p5-h100" in out
    assert "p5.4xlarge" not in out
    assert out.startswith("2 of 25")


def test_json_has_every_field_and_is_sorted() -> None:
    listed = json.loads(run("--filter", "device=cuda", "--json"))
    prices = [entry["price_per_hour"] for entry in listed]
    assert prices == sorted(prices)
    assert len(prices) == 17
    assert Entry(**listed[0]).name == "aws-g4dn-t4"
    assert {"price_date", "price_source", "rates_source", "bandwidth_source"} <= listed[0].keys()


def test_spot_lists_what_has_a_spot_price_by_that_price() -> None:
    listed = json.loads(run("--spot", "--json"))
    prices = [entry["spot_price_per_hour"] for entry in listed]
    assert prices == sorted(prices)
    assert len(prices) == 23


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--filter", "abacus"], "no type of the catalog matches 'abacus'; providers are aws, gcp"),
        (["--filter", "device=cpu", "--filter", "device=cuda"], "no type of the catalog matches"),
        (["--filter", "p4de", "--spot"], "none of the 1 types that match 'p4de' lists a spot price"),
        (["--filter", "devise=cpu"], "Did you mean 'device'?"),
    ],
)
def test_no_match_is_explained(args: list[str], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        run(*args)
    assert message in str(error.value)
