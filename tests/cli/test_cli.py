"""The command line as a user meets it: real processes, exit codes, messages, files."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from heterps.plan import Cluster, Plan, Profile
from heterps.schedule.paper import paper_cluster, paper_profile
from tests.cli.commands import heterps, refused

GOAL = ("--min-throughput", "500000")


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    profile, cluster = tmp_path / "profile.json", tmp_path / "cluster.yaml"
    paper_profile("ctrdnn").save(profile)
    paper_cluster().save(cluster)
    return profile, cluster


def test_plan_prints_stages_totals_and_the_proof(files: tuple[Path, Path]) -> None:
    done = heterps("plan", *files, *GOAL, fresh=True)
    assert done.returncode == 0, done.stderr
    for word in ("stage", "parameter server", "v100", "proved optimal", "Why this placement", "everything on cpu: +"):
        assert word in done.stdout


def test_json_is_the_plan_alone_and_equals_the_file(files: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    done = heterps("plan", *files, *GOAL, "--json", "--out", out)
    assert done.stdout == out.read_text()
    plan = Plan.load(out)
    assert plan.search.optimal
    assert plan.inputs.profile_sha256 == Profile.load(files[0]).sha256


def test_built_in_names_stand_for_files(files: tuple[Path, Path]) -> None:
    both = heterps("plan", "--model", "ctrdnn", "--cluster", "paper", *GOAL, "--json")
    mixed = heterps("plan", "--model", "ctrdnn", files[1], *GOAL, "--json")
    other = heterps("plan", files[0], "--cluster", "paper", *GOAL, "--json")
    plans = [json.loads(done.stdout) for done in (both, mixed, other)]
    assert plans[0]["stages"] == plans[1]["stages"] == plans[2]["stages"]


def test_sync_mode_is_recorded(files: tuple[Path, Path]) -> None:
    done = heterps("plan", *files, *GOAL, "--mode", "sync", "--micro-batches", "4", "--json")
    inputs = json.loads(done.stdout)["inputs"]
    assert (inputs["mode"], inputs["micro_batches"]) == ("sync", 4)


def test_goals(files: tuple[Path, Path]) -> None:
    by_deadline = heterps("plan", *files, "--samples", "3.6e9", "--deadline-hours", "2", "--json")
    assert json.loads(by_deadline.stdout)["inputs"]["min_throughput"] == 500000.0
    budget = json.loads(heterps("plan", *files, "--samples", "1e9", "--budget-usd", "6", "--json").stdout)
    assert budget["predicted"]["usd_per_million_samples"] <= 0.006 * (1 + 1e-9)
    assert budget["search"]["optimal"]
    capped = json.loads(heterps("plan", *files, *GOAL, "--max-usd-per-hour", "10.5", "--json").stdout)
    assert capped["predicted"]["usd_per_hour"] <= 10.5


def test_compare_pareto_and_explain(files: tuple[Path, Path], tmp_path: Path) -> None:
    methods = "exact,rl,greedy,heuristic,only:cpu,brute-force"
    done = heterps("compare", *files, *GOAL, "--methods", methods, "--json", "--plot", tmp_path / "c.png", fresh=True)
    rows = {row["method"]: row for row in json.loads(done.stdout)["methods"]}
    assert rows["exact"]["gap"] <= 1e-6
    assert rows["only:cpu"]["gap"] > 0.5
    assert all({"seconds", "evaluations", "usd_per_million_samples"} <= row.keys() for row in rows.values())
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")

    done = heterps("pareto", *files, "--points", "6", "--json", "--plot", tmp_path / "p.png", fresh=True)
    points = json.loads(done.stdout)["points"]
    assert len(points) == 6
    assert all(a["throughput"] < b["throughput"] for a, b in itertools.pairwise(points))
    assert all(a["usd_per_million_samples"] <= b["usd_per_million_samples"] for a, b in itertools.pairwise(points))
    assert all(point["optimal"] for point in points)
    assert (tmp_path / "p.png").stat().st_size > 1000

    heterps("plan", *files, *GOAL, "--out", tmp_path / "plan.json")
    done = heterps("explain", tmp_path / "plan.json", *files, fresh=True)
    for word in ("Next best alternatives", "communication", "paper (Newton", "static 1:8"):
        assert word in done.stdout
    explained = json.loads(heterps("explain", tmp_path / "plan.json", *files, "--json").stdout)
    ours = explained["breakdown"]["usd_per_sample"] * 1e6
    assert all(other["usd_per_million_samples"] >= ours * (1 - 1e-6) for other in explained["alternatives"])


def test_a_stale_plan_is_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    heterps("plan", *files, *GOAL, "--out", tmp_path / "plan.json")
    data = yaml.safe_load(files[1].read_text())
    data["types"]["cpu"]["price_per_hour"] = 0.05
    files[1].write_text(yaml.safe_dump(data))
    message = refused("explain", tmp_path / "plan.json", *files)
    assert "stale" in message
    assert "cluster.yaml" in message


def test_an_unreachable_throughput_exits_3_with_what_stops_it(files: tuple[Path, Path]) -> None:
    message = refused("plan", *files, "--min-throughput", "1e8", code=3)
    assert "highest reachable throughput is" in message
    assert "What stops it" in message
    assert "limit of" in message
    reachable = message.split("throughput is ")[1].split()[0]
    assert heterps("plan", *files, "--min-throughput", reachable).returncode == 0


@pytest.mark.parametrize(
    ("file", "old", "new", "words"),
    [
        ("profile.json", '"heterps.profile/1"', '"other/9"', ["format", "other/9"]),
        ("profile.json", '"alpha": 0.', '"alpha": 7.', ["alpha", "7."]),
        ("profile.json", '"compute_s": ', '"compute_s": -', ["compute_s", "-"]),
        ("profile.json", '"compute_s": ', '"x": ', ["compute_s", "missing"]),
        ("profile.json", '"sync_s": ', '"sync_s": NaN, "y": ', ["sync_s", "nan"]),
        ("profile.json", '"batch_size": 4096', '"batch_size": 0', ["batch_size", "0"]),
        ("cluster.yaml", "price_per_hour: 0.04", "price_per_hour: 0", ["price_per_hour", "0"]),
        ("cluster.yaml", "limit: 480", "limit: 0", ["limit", "0"]),
        ("cluster.yaml", "parameter_server: cpu", "parameter_server: tpu", ["parameter_server", "tpu"]),
        ("cluster.yaml", "v100:", "a100:", ["a100", "v100"]),
    ],
)
def test_bad_files_exit_2_and_name_file_field_and_value(
    files: tuple[Path, Path], file: str, old: str, new: str, words: list[str]
) -> None:
    path = files[0].parent / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    if new == "a100:":  # a layer that no type can run: it was profiled on the v100 alone
        data = json.loads(files[0].read_text())
        del data["layers"][3]["costs"]["cpu"]
        files[0].write_text(json.dumps(data))
    message = refused("plan", *files, *GOAL)
    for word in [file if file == "profile.json" else "cluster.yaml", *words]:
        assert word in message, message


def test_truncated_empty_and_missing_files(files: tuple[Path, Path], tmp_path: Path) -> None:
    files[0].write_text(files[0].read_text()[:1000])
    assert "profile.json" in refused("plan", *files, *GOAL)
    files[0].write_text("")
    assert "empty" in refused("plan", *files, *GOAL)
    assert "nowhere.json" in refused("plan", tmp_path / "nowhere.json", files[1], *GOAL)
    Profile.from_dict(paper_profile("nce").to_dict()).save(files[0])
    assert "cannot be written" in refused("plan", *files, *GOAL, "--out", tmp_path / "no" / "plan.json")


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ((), "state one goal"),
        (("--min-throughput", "-5"), "-5"),
        (("--min-throughput", "nan"), "nan"),
        (("--samples", "100"), "state one goal"),
        (("--min-throughput", "5", "--samples", "5", "--budget-usd", "1"), "more than one"),
        (("--min-throughput", "5", "--mode", "sync"), "--micro-batches"),
        (("--min-throughput", "5", "--mode", "semi"), "semi"),
        (("--min-throughput", "5", "--method", "magic"), "unknown method 'magic'"),
        (("--min-throughput", "5", "--method", "only:tpu"), "unknown type 'tpu'"),
        (("--min-throughput", "five"), "--min-throughput"),
    ],
)
def test_bad_goals_and_methods(files: tuple[Path, Path], args: tuple[str, ...], word: str) -> None:
    assert word in refused("plan", *files, *args)


def test_problem_arguments(files: tuple[Path, Path]) -> None:
    assert "either PROFILE or --model" in refused("plan", *GOAL)
    assert "either CLUSTER or --cluster" in refused("plan", files[0], *GOAL)
    assert "both" in refused("plan", *files, "--model", "ctrdnn", *GOAL)
    assert "Did you mean 'matchnet'" in refused("plan", "--model", "matchnets", "--cluster", "paper", *GOAL)


def test_a_cluster_may_offer_fewer_or_more_types_than_were_profiled(files: tuple[Path, Path]) -> None:
    cluster = Cluster.load(files[1]).to_dict()
    del cluster["types"]["v100"]
    cluster["types"]["h200"] = {"device": "cuda", "price_per_hour": 8.0}
    files[1].write_text(yaml.safe_dump(cluster))
    done = heterps("plan", *files, "--min-throughput", "1000", "--json")
    assert done.returncode == 0
    assert set(json.loads(done.stdout)["placement"]) == {"cpu"}
    assert "v100" in done.stderr
    assert "h200" in done.stderr


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    began = time.perf_counter()
    done = heterps("--help", fresh=True)
    seconds = time.perf_counter() - began
    assert done.returncode == 0
    assert "compare" in done.stdout
    heavy = ("torch", "optuna", "numpy", "pydantic", "matplotlib")
    code = f"import sys, heterps.cli.main; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
    bare = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import typer.main"], check=True)
    assert seconds < 5 * (time.perf_counter() - bare)
