"""The files of a run directory, each of which may be missing or wrong without stopping a report."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml

from heterps.documents import Document
from heterps.errors import HeterPSError
from heterps.plan import Cluster, Plan, Profile

D = TypeVar("D", bound=Document)
PLANNING = ("plan.json", "profile.json", "cluster.yaml", "rent/plan.json", "rent/profile.json", "rent/cluster.yaml",
            "comparison.json", "frontier.json")  # fmt: skip
OTHERS = ("job.yaml", "result.json", "environment.json")


@dataclass(frozen=True, slots=True)
class RunFiles:
    """What the files of a run say, None for those that are not there; `wrong` has a line for each bad one."""

    plan: Plan | None = None
    profile: Profile | None = None
    cluster: Cluster | None = None
    rent_plan: Plan | None = None
    rent_cluster: Cluster | None = None
    rent_profile: Profile | None = None
    """What is to be rented was planned from it: that of the run with types that this machine lacks."""
    comparison: dict[str, Any] | None = None
    frontier: dict[str, Any] | None = None
    wrong: dict[str, str] = field(default_factory=dict)
    """By file name, what is wrong with it."""


def read_planning(run: Path) -> RunFiles:
    """The files about planning."""
    wrong: dict[str, str] = {}
    plan, profile = _document(Plan, run, "plan.json", wrong), _document(Profile, run, "profile.json", wrong)
    cluster = _document(Cluster, run, "cluster.yaml", wrong)
    rent_plan = _document(Plan, run, "rent/plan.json", wrong)
    rent_cluster = _document(Cluster, run, "rent/cluster.yaml", wrong)
    rent_profile = _document(Profile, run, "rent/profile.json", wrong) or profile
    comparison, frontier = (read_object(run, name, wrong) for name in ("comparison.json", "frontier.json"))
    return RunFiles(plan, profile, cluster, rent_plan, rent_cluster, rent_profile, comparison, frontier, wrong)


def read_object(run: Path, name: str, wrong: dict[str, str]) -> dict[str, Any] | None:
    """A file of one JSON or YAML object; one that is bad is named in `wrong`."""
    try:
        text = (run / name).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        wrong[name] = f"{name} cannot be read ({error})"
        return None
    try:
        found = yaml.safe_load(text) if name.endswith(".yaml") else json.loads(text)
    except (ValueError, yaml.YAMLError) as error:
        wrong[name] = f"{name} cannot be read ({' '.join(str(error).split())})"
        return None
    if not isinstance(found, dict):
        wrong[name] = f"{name} holds no object"
        return None
    return found


def number(value: object) -> float | None:
    """A number as it stands, or None for what is none, or no finite one."""
    plain = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if plain else None  # type: ignore[return-value]


def part(found: dict[str, Any] | None, key: str) -> dict[str, Any]:
    """An object within an object; an empty one where there is none."""
    inner = (found or {}).get(key)
    return inner if isinstance(inner, dict) else {}


def read_result(run: Path, wrong: dict[str, str]) -> dict[str, Any] | None:
    """What `result.json` says, every figure of it a number or None."""
    found = read_object(run, "result.json", wrong)
    if found is None:
        return None
    figures = ("steps", "samples", "seconds", "loss", "auc", "eval_loss")
    stages, told = found.get("stages"), part(found, "measured")
    return {
        **{key: number(found.get(key)) for key in figures},
        "stopped": str(found["stopped"]) if "stopped" in found else None,
        "measured": {key: number(told.get(key)) for key in ("throughput", "usd_per_million_samples")},
        "stages": [
            {"type": str(stage.get("type")),
             **{key: number(stage.get(key)) for key in ("units", "predicted_s", "measured_s", "busy")}}
            for stage in (stages if isinstance(stages, list) else ()) if isinstance(stage, dict)
        ],
    }  # fmt: skip


def signature(run: Path, names: tuple[str, ...]) -> tuple[tuple[int, int] | None, ...]:
    """Changes when one of the files does."""
    found: list[tuple[int, int] | None] = []
    for name in names:
        try:
            stat = (run / name).stat()
            found.append((stat.st_mtime_ns, stat.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _document(kind: type[D], run: Path, name: str, wrong: dict[str, str]) -> D | None:
    path = run / name
    if not path.exists():
        return None
    try:
        return kind.load(path)
    except HeterPSError as error:
        wrong[name] = str(error).replace(str(path), name)
        return None
