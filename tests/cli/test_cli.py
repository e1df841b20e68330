"""The command line as a user meets it: real processes, exit codes, messages, files."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
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
    assert all(a["usd_per_million_samples"] < b["usd_per_million_samples"] for a, b in itertools.pairwise(points))
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


def edited(plan: Path, **parts: object) -> Path:
    """The plan's file with some of its parts replaced, beside it."""
    path = plan.with_name("edited.json")
    path.write_text(json.dumps(json.loads(plan.read_text()) | parts))
    return path


def test_explain_refuses_plans_that_do_not_fit_their_files(files: tuple[Path, Path], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    made = json.loads(heterps("plan", *files, *GOAL, "--out", plan, "--json").stdout)
    layers = len(made["placement"])
    cpu, v100 = ({"device": device, "price_per_hour": 1.0} for device in ("cpu", "cuda"))

    def all_on(name: str, count: int) -> dict[str, object]:
        stage = {"first": 0, "last": count - 1, "type": name, "units": 9}
        return {"placement": [name] * count, "stages": [stage], "types": {"cpu": cpu, "v100": v100, name: v100}}

    for parts, words in (
        (all_on("cpu", layers + 1), ["placement", f"{layers + 1} entries", "profile.json"]),
        (all_on("cpu", layers - 1), ["placement", f"{layers - 1} entries", "profile.json"]),
        (all_on("tpu", layers), ["placement[0] = 'tpu'", "cluster.yaml", "cpu, v100"]),
        ({"parameter_server": None}, ["parameter_server is missing"]),
        ({"parameter_server": {"type": "cpu", "units": 0}}, ["parameter_server.units = 0"]),
        ({"parameter_server": {"type": "v100", "units": 3}}, ["parameter_server.type = 'v100'", "cluster.yaml"]),
        ({"inputs": made["inputs"] | {"mode": "sync"}}, ["inputs", "--micro-batches"]),
    ):
        for output in ((), ("--json",)):
            message = refused("explain", edited(plan, **parts), *files, *output)
            for word in ["edited.json", "plan again", *words]:
                assert word in message, message


def test_explain_refuses_a_type_that_a_layer_was_not_profiled_on(files: tuple[Path, Path], tmp_path: Path) -> None:
    profile = json.loads(files[0].read_text())
    del profile["layers"][0]["costs"]["v100"]
    files[0].write_text(json.dumps(profile))
    plan = tmp_path / "plan.json"
    made = json.loads(heterps("plan", *files, *GOAL, "--out", plan, "--json").stdout)
    layers = len(made["placement"])
    stages = [{"first": 0, "last": layers - 1, "type": "v100", "units": 9}]
    message = refused("explain", edited(plan, placement=["v100"] * layers, stages=stages), *files)
    assert "placement[0] = 'v100'" in message


def test_explain_says_what_is_wrong_in_an_edited_plan_and_shows_the_cost_model(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    plan = tmp_path / "plan.json"
    made = json.loads(heterps("plan", *files, *GOAL, "--out", plan, "--json").stdout)
    honest = heterps("explain", plan, *files)
    assert honest.stderr == ""
    lies = {"throughput": 9e9, "usd_per_hour": 1.0, "usd_per_million_samples": 1e-9}
    done = heterps("explain", edited(plan, predicted=lies), *files)
    assert "predicted is not what the cost model gives" in done.stderr
    assert "throughput" in done.stderr
    assert "nothing proved" in done.stdout
    assert "proved optimal" in honest.stdout
    assert done.stdout.replace("nothing proved", "proved optimal") == honest.stdout
    stages = [*made["stages"][:-1], made["stages"][-1] | {"units": 500}]
    done = heterps("explain", edited(plan, stages=stages), *files, "--json")
    assert done.returncode == 0
    assert "500 units of v100, the limit is 32" in done.stderr
    assert json.loads(done.stdout)["breakdown"]["stages"][-1]["units"] == 500


def test_explain_keeps_a_budget(files: tuple[Path, Path], tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    heterps("plan", *files, "--samples", "1e9", "--budget-usd", "6", "--out", plan)
    explained = json.loads(heterps("explain", plan, *files, "--json").stdout)
    made = [*explained["alternatives"], *filter(None, explained["provisioning"].values())]
    costs = [one["usd_per_million_samples"] for one in made if one["usd_per_million_samples"] is not None]
    assert costs
    assert max(costs) <= 0.006 * (1 + 1e-6)
    shown = heterps("explain", plan, *files).stdout
    assert "samples/s" in shown
    assert "-0.00%" not in shown
    assert {round(one["throughput"]) for one in made if one["throughput"]} <= {
        int(word.replace(",", "")) for word in shown.split() if word.replace(",", "").isdigit()
    }


def test_any_seed_from_0_on_will_do(files: tuple[Path, Path]) -> None:
    for method in ("rl", "bayesian", "genetic"):
        done = heterps("plan", *files, *GOAL, "--method", method, "--seed", str(2**70 + 1), "--json")
        assert done.returncode == 0, done.stderr


def test_names_are_printed_as_files_have_them(files: tuple[Path, Path]) -> None:
    """Not taken for Rich's markup, whose closing tags would be errors."""
    profile = json.loads(files[0].read_text())
    profile["model"], profile["layers"][0]["name"], profile["layers"][-1]["name"] = "m[/]", "emb[/]", "[b]fc:x:"
    files[0].write_text(json.dumps(profile))
    simulated = ("--objective", "simulated", "--method", "only:cpu", "--simulations", "1")
    done = heterps("plan", *files, "--min-throughput", "1000", *simulated)
    assert done.returncode == 0, done.stderr
    assert "m[/]: " in done.stdout
    assert "emb[/]..[b]fc:x: (" in done.stdout
    plan = files[0].with_name("plan.json")
    for command in (
        ("plan", *files, *GOAL, "--out", plan),
        ("compare", *files, *GOAL, "--methods", "exact"),
        ("pareto", *files, "--points", "2"),
    ):
        done = heterps(*command)
        assert done.returncode == 0, done.stderr
        assert "m[/]: " in done.stdout
    done = heterps("explain", plan, *files)
    assert done.returncode == 0, done.stderr
    assert "emb[/]" in done.stdout
    assert "[b]fc" in done.stdout


def test_an_unreachable_throughput_exits_3_with_what_stops_it(files: tuple[Path, Path]) -> None:
    message = refused("plan", *files, "--min-throughput", "1e8", code=3)
    assert "highest reachable throughput is" in message
    assert "What stops it" in message
    assert "limit of" in message
    reachable = message.split("throughput is ")[1].split()[0]
    assert heterps("plan", *files, "--min-throughput", reachable).returncode == 0


@pytest.mark.parametrize("compute_s", [9.27931, 0.2345678901, 3e6])
def test_the_highest_throughput_of_the_message_can_be_asked_for(tmp_path: Path, compute_s: float) -> None:
    profile, cluster = tmp_path / "profile.json", tmp_path / "cluster.yaml"
    costs = {"cpu": {"compute_s": compute_s, "sync_s": 0.0, "alpha": 0.0}}
    layer = {"name": "a", "costs": costs}
    profile.write_text(json.dumps({"format": "heterps.profile/1", "batch_size": 1, "layers": [layer]}))
    cluster.write_text("types: {cpu: {device: cpu, price_per_hour: 1.0}}")
    message = refused("plan", profile, cluster, "--min-throughput", "20", code=3)
    reachable = message.split("throughput is ")[1].split()[0]
    assert float(reachable) == pytest.approx(1 / compute_s, rel=1e-5)
    assert heterps("plan", profile, cluster, "--min-throughput", reachable).returncode == 0


def test_a_throughput_of_0_asks_for_the_cheapest_plan_of_all(files: tuple[Path, Path]) -> None:
    any_speed = json.loads(heterps("plan", *files, "--min-throughput", "0", "--json").stdout)
    fast = json.loads(heterps("plan", *files, *GOAL, "--json").stdout)
    assert any_speed["predicted"]["usd_per_million_samples"] <= fast["predicted"]["usd_per_million_samples"]


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
        (("--min-throughput", "inf"), "0 or more"),
        (("--min-throughput", "5", "--seed", "-1"), "--seed is -1"),
        (("--min-throughput", "5", "--seed", "-1", "--method", "bayesian"), "--seed is -1"),
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


def processor_s(work: Callable[[], object]) -> float:
    """Seconds of processors that the processes take which `work` starts and waits for."""
    before = os.times()
    work()
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    done = heterps("--help", fresh=True)
    assert done.returncode == 0
    assert "compare" in done.stdout
    heavy = ("torch", "optuna", "numpy", "pydantic", "matplotlib")
    code = f"import sys, heterps.cli.main; print([m for m in {heavy} if m in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"
    bare = [sys.executable, "-c", "import typer.main"]
    # Work, not time, and the least of some runs: what else the machine does makes both longer.
    ours, least = (
        min(processor_s(work) for _ in range(2))
        for work in (lambda: heterps("--help", fresh=True), lambda: subprocess.run(bare, check=True))
    )
    assert ours < 5 * least
