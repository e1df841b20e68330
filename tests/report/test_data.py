"""A run directory as one object: complete, partial, wrong, unfinished."""

from __future__ import annotations

import fcntl
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest

from heterps.plan import Plan
from heterps.report.data import RunReader, read_run
from heterps.report.page import render_page
from heterps.schedule.cost import stage_times
from heterps.schedule.frontier import frontier, frontier_json
from heterps.schedule.goal import Goal
from heterps.schedule.infeasible import NO_MONEY_LIMIT_USD
from heterps.schedule.paper import paper_cluster, paper_profile
from heterps.schedule.problem import Problem
from tests.report.runs import BATCH, HERE, make_run, records, write_telemetry

SECTIONS = ("plan", "chain", "frontier", "comparison", "stages", "timeline", "curves", "store", "environment", "job")


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "full")


def copy_files(run: Path, to: Path) -> None:
    """All but what is to be rented."""
    for file in run.iterdir():
        if file.is_file():
            (to / file.name).write_bytes(file.read_bytes())


def test_a_complete_run_has_every_section(full: Path) -> None:
    data = read_run(full)
    assert [section for section in (*SECTIONS, "rent") if data[section] is None] == []
    assert data["missing"] == {}
    assert data["wrong"] == []
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert [kind["name"] for kind in data["types"]] == ["cpu", "v100"]
    assert data["run"] | {"name": "full", "state": "over", "stopped": "done", "step": 400} == data["run"]


def test_predictions_of_stages_are_those_of_the_cost_model(full: Path) -> None:
    plan = Plan.load(full / "plan.json")
    times = stage_times(paper_profile("ctrdnn"), HERE, plan.placement)
    expected = [BATCH * time.seconds(stage.units) for time, stage in zip(times, plan.stages, strict=True)]
    assert [stage["predicted_s"] for stage in read_run(full)["stages"]] == pytest.approx(expected)


def test_the_top_line_says_it_all(full: Path) -> None:
    verdict = read_run(full)["verdict"]
    rent = Plan.load(full / "rent" / "plan.json")
    assert verdict["rent_usd_per_million_samples"] == rent.predicted.usd_per_million_samples
    for words in ("324,599/s measured, 7.00% below the 349,032/s predicted", "held-out AUC 0.7891",
                  "$0.004941 a million samples", "proved optimal"):  # fmt: skip
        assert words in verdict["text"], verdict["text"]


def test_the_frontier_is_that_of_what_is_to_be_rented(full: Path, tmp_path: Path) -> None:
    computed = read_run(full)["frontier"]
    problem = Problem(paper_profile("ctrdnn"), paper_cluster(), Goal(min_throughput=0.0))
    plans = list(frontier(problem))
    assert [point["throughput"] for point in computed["points"]] == [plan.predicted.throughput for plan in plans]
    assert computed["of"] == "rent"
    assert computed["points"][-1]["units"].count("cpu") >= 1
    run = make_run(tmp_path / "run")
    (run / "frontier.json").write_text(frontier_json(plans[:3]))
    assert read_run(run)["frontier"]["points"] == computed["points"][:3]
    local = make_run(tmp_path / "local", rent=False)
    assert read_run(local)["frontier"]["of"] == "run"


def test_what_is_to_be_rented_may_have_a_profile_of_its_own(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "profile.json").rename(run / "rent" / "profile.json")
    data = read_run(run)
    assert data["rent"]["note"] is None
    assert data["rent"]["stages"][0]["seconds"] > 0
    assert len(data["chain"]["layers"]) == 16
    assert data["frontier"]["of"] == "rent"
    assert "need the profile" in data["plan"]["note"]


def test_a_budget_that_is_none_is_not_told(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", rent=False)
    plan = json.loads((run / "plan.json").read_text())
    plan["inputs"] |= {"budget_usd": NO_MONEY_LIMIT_USD, "samples": 1e6, "min_throughput": 0.0}
    (run / "plan.json").write_text(json.dumps(plan))
    assert read_run(run)["plan"]["goal"] == {"fastest": True}


def test_training_alone_leaves_less_and_says_what_is_missing(tmp_path: Path) -> None:
    data = read_run(make_run(tmp_path / "bare", planned=False))
    assert [section for section in SECTIONS if data[section] is None] == ["plan", "chain", "frontier", "comparison"]
    assert data["missing"].keys() == {"plan", "chain", "frontier", "comparison"}
    assert all(text.endswith(".") or "heterps run" in text for text in data["missing"].values())
    assert data["verdict"]["text"] == "130,000/s measured; held-out AUC 0.7891."


def test_telemetry_is_enough(tmp_path: Path) -> None:
    write_telemetry(tmp_path / "telemetry.jsonl", records(steps=40))
    data = read_run(tmp_path)
    assert data["missing"].keys() == {*SECTIONS} - {"stages", "timeline", "curves", "store"}
    assert data["stages"][0]["measured_s"] == pytest.approx(4 * 0.003 + 4 * 0.0032 + 0.0015, rel=0.05)
    assert data["measured"]["loss"] is not None


@pytest.mark.parametrize("name", ["plan.json", "profile.json", "cluster.yaml", "result.json", "job.yaml",
                                  "comparison.json", "frontier.json", "environment.json"])  # fmt: skip
@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'{"format": 3, "points": 7, "methods": [1]}'])
def test_a_wrong_file_is_named_and_the_rest_is_shown(full: Path, tmp_path: Path, name: str, content: bytes) -> None:
    copy_files(full, tmp_path)
    (tmp_path / name).write_bytes(content)
    data = read_run(tmp_path)
    assert data["timeline"] is not None
    json.dumps(data, allow_nan=False)
    if content in (b"{", b"[1]", b"\xff\xfe"):
        assert any(name in line for line in data["wrong"])


def test_a_plan_of_other_files_has_no_times(full: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "cluster.yaml").write_text((run / "cluster.yaml").read_text().replace("limit: 48", "limit: 47"))
    data = read_run(run)
    assert "not the one it was made from" in data["plan"]["note"]
    assert "seconds" not in data["plan"]["stages"][0]
    assert data["stages"][0]["predicted_s"] is None


def test_a_run_that_goes_on_is_told_by_its_telemetry(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ended=False, steps=100)
    reader = RunReader(run)
    (run / "result.json").write_text(json.dumps({"stopped": "interrupted", "steps": 7, "measured": {"throughput": 1}}))
    data = reader.read(live=True)
    assert data["run"]["state"] == "running"
    assert data["run"]["step"] == 100
    step_s = 0.8 * 4 * 0.0055
    assert BATCH / (3 * step_s) < data["verdict"]["throughput"] < BATCH / step_s
    assert data["verdict"]["usd_per_million_samples"] == pytest.approx(
        Plan.load(run / "plan.json").predicted.usd_per_hour / 3600 / data["verdict"]["throughput"] * 1e6
    )
    write_telemetry(run / "telemetry.jsonl", records(steps=20, first=100), append=True)
    again = reader.read(live=True)["run"]
    assert (again["state"], again["stopped"], again["sessions"]) == ("over", "interrupted", 2)


def test_a_process_that_is_gone_is_told_from_one_that_is_quiet(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ended=False, steps=20)
    an_hour_ago = 1.7e9
    os.utime(run / "telemetry.jsonl", (an_hour_ago, an_hour_ago))
    assert RunReader(run).read()["run"]["state"] == "broken off"
    assert RunReader(run, clock=lambda: an_hour_ago + 3).read()["run"]["state"] == "running"
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert RunReader(run).read()["run"]["state"] == "running"


def test_a_run_that_is_not_there_yet(tmp_path: Path) -> None:
    reader = RunReader(tmp_path / "later")
    data = reader.read(live=True)
    assert (data["run"]["state"], data["verdict"]["text"]) == ("waiting", "Waiting for the run to begin.")
    make_run(tmp_path / "later", steps=20)
    assert reader.read(live=True)["run"]["state"] == "over"


def test_tables_are_told_with_their_growth(full: Path) -> None:
    (table,) = read_run(full)["store"]
    assert (table["name"], table["rows"], table["creations"]) == ("emb", table["creations"], table["rows"])
    assert table["hits"] == 106_496 * 400 - table["rows"]
    assert len(table["curves"]["rows"]) == 20


@pytest.mark.parametrize("seed", range(6))
def test_whatever_values_files_hold_there_is_a_page(full: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    odd = [None, "x", -1, 1e400, [], {}, [1], {"a": 1}, True, "\ud800"]

    def spoiled(value: Any) -> Any:
        if rng.random() < 0.15:
            return rng.choice(odd)
        if isinstance(value, dict):
            return {key: spoiled(inner) for key, inner in value.items()}
        return [spoiled(inner) for inner in value] if isinstance(value, list) else value

    copy_files(full, tmp_path)
    (tmp_path / "frontier.json").write_text(json.dumps({"points": read_run(full)["frontier"]["points"]}))
    for name in ("result.json", "comparison.json", "frontier.json", "environment.json"):
        (tmp_path / name).write_text(json.dumps(spoiled(json.loads((tmp_path / name).read_text()))))
    lines = [json.dumps(spoiled(record)) for record in records(steps=30)]
    (tmp_path / "telemetry.jsonl").write_text("\n".join(lines) + "\n")
    data = read_run(tmp_path)
    render_page(data)
    json.dumps(data, allow_nan=False)


def test_a_result_of_an_earlier_session_is_not_this_ones(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=40)
    assert read_run(run)["run"]["stopped"] == "done"
    later = [{**record, "fields": {"unix_s": 4e9}} if record["name"] == "start" else record
             for record in records(steps=20, first=40)]  # fmt: skip
    write_telemetry(run / "telemetry.jsonl", later, append=True)  # it failed: it ended and left no result
    data = read_run(run)
    assert (data["run"]["stopped"], data["run"]["step"]) == (None, 60)


def test_a_session_that_had_nothing_to_do_changes_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=40)
    before = read_run(run)
    idle = [{"t": 0, "kind": "event", "name": "start", "fields": {"unix_s": 4e9}},
            {"t": 1, "kind": "event", "name": "end", "fields": {}}]  # fmt: skip
    write_telemetry(run / "telemetry.jsonl", idle, append=True)
    assert read_run(run) == before
