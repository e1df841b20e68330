"""`heterps simulate`, and `heterps plan --objective simulated`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from heterps.cli.simulate import simulate
from heterps.errors import InvalidInput
from heterps.plan import Plan
from heterps.schedule.goal import Goal
from heterps.schedule.paper import paper_cluster, paper_profile
from heterps.schedule.planner import make_plan
from heterps.schedule.problem import Problem
from tests.cli.commands import heterps, refused

BUILT_IN = ("--model", "ctrdnn", "--cluster", "paper")
GOAL = ("--min-throughput", "500000")


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    make_plan(Problem(paper_profile("ctrdnn"), paper_cluster(), Goal(min_throughput=500_000.0))).save(path)
    return path


def run(*arguments: object) -> str:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(simulate)
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_calm_runs_agree_with_the_closed_form(plan_file: Path) -> None:
    shown = json.loads(run(plan_file, *BUILT_IN, "--json"))
    assert shown["throughput"] == pytest.approx(shown["predicted_throughput"], rel=0.02)
    assert shown["predicted_throughput"] == pytest.approx(Plan.load(plan_file).predicted.throughput)
    assert [cost["name"] for cost in shown["costs"]] == ["pipeline"]
    assert len(shown["stages"]) == len(Plan.load(plan_file).stages)
    assert shown["failures"] is None


def test_everything_that_costs_is_named(plan_file: Path) -> None:
    options = ("--jitter", "0.1", "--shared-gbps", "200", "--failures", "1e-3", "--restart-s", "600")
    text = run(plan_file, *BUILT_IN, *options)
    for words in ("predicted by the closed form", "simulated", "jitter costs", "shared links cost", "failures cost",
                  "failures in 24 h", "bound by", "stage", "waiting"):  # fmt: skip
        assert words in text
    shown = json.loads(run(plan_file, *BUILT_IN, *options, "--json"))
    assert shown["throughput"] < 0.95 * shown["predicted_throughput"]
    assert shown["conditions"]["restart_s"] == 600
    assert json.loads(run(plan_file, *BUILT_IN, *options, "--json")) == shown
    assert json.loads(run(plan_file, *BUILT_IN, *options, "--json", "--seed", "1")) != shown


def test_units_give_a_table_a_plot_and_json(plan_file: Path, tmp_path: Path) -> None:
    plot = tmp_path / "scale.png"
    text = run(plan_file, *BUILT_IN, "--units", "100,1000", "--jitter", "0.1", "--plot", plot)
    for words in ("efficiency", "limit", "100.0%", "1,000", f"plot written to {plot}"):
        assert words in text
    assert plot.read_bytes()[:4] == b"\x89PNG"
    shown = json.loads(run(plan_file, *BUILT_IN, "--units", "100,1000", "--grow-batch", "--fixed-server", "--json"))
    assert [point["units"] for point in shown] == [100, 1000]
    assert shown[1]["batch_size"] == 10 * shown[0]["batch_size"]
    assert shown[1]["server_units"] == shown[0]["server_units"]
    assert shown[1]["limit"] == "parameter server"


def test_bad_input_is_refused(plan_file: Path) -> None:
    with pytest.raises(InvalidInput, match="--jitter is -1"):
        run(plan_file, *BUILT_IN, "--jitter", "-1")
    with pytest.raises(InvalidInput, match="--units is 'many'"):
        run(plan_file, *BUILT_IN, "--units", "many")
    for alone in ("--grow-batch", "--fixed-server"):
        with pytest.raises(InvalidInput, match="go with --units"):
            run(plan_file, *BUILT_IN, alone)
    with pytest.raises(InvalidInput, match="stale"):
        run(plan_file, "--model", "matchnet", "--cluster", "paper")


def test_planning_on_the_simulator_shows_both_plans_and_writes_one(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    simulated = ("--objective", "simulated", "--jitter", "0.2", "--simulations", "400")
    done = heterps("plan", *BUILT_IN, *GOAL, *simulated, "--out", out)
    assert done.returncode == 0, done.stderr
    for words in ("In simulation", "rl", "exact+local", "(chosen)", "by the closed form"):
        assert words in done.stdout
    written = json.loads(out.read_text())
    assert written["search"]["simulated"]["jitter"] == 0.2
    assert written["search"]["simulated"]["throughput"] > 495_000
    assert json.loads(run(out, *BUILT_IN, "--jitter", "0.2", "--json"))["throughput"] == pytest.approx(
        written["search"]["simulated"]["throughput"]
    )


def test_the_closed_form_refuses_what_it_knows_nothing_of() -> None:
    assert "--objective simulated" in refused("plan", *BUILT_IN, *GOAL, "--jitter", "0.2")
    assert "closed-form or simulated" in refused("plan", *BUILT_IN, *GOAL, "--objective", "magic")
    assert "--simulations" in refused("plan", *BUILT_IN, *GOAL, "--simulations", "5")
