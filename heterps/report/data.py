"""A run directory as one plain object: the only input of pages, plots and JSON.

`telemetry.jsonl` is all that a run must have. What else is missing leaves its section None, and a line in `missing`
that says what would put it there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heterps.report import measured, planning, state
from heterps.report.files import (
    OTHERS,
    PLANNING,
    RunFiles,
    number,
    part,
    read_object,
    read_planning,
    read_result,
    signature,
)
from heterps.report.telemetry import TelemetryReader
from heterps.report.timeline import timeline
from heterps.report.verdict import verdict

FORMAT = "heterps.report/1"
TELEMETRY = "telemetry.jsonl"
LIVE_BYTES = 32 << 20
"""Of telemetry that a live page reads before it shows what it has (assumed: about two seconds)."""

BEGUN = "They come when the run has done some steps."
MISSING = {
    "plan": "There is no plan.json: heterps run makes a plan, and heterps train --plan plan.json runs by one.",
    "chain": "There is no profile.json: heterps run measures the layers and leaves it here.",
    "comparison": "There is no comparison.json: heterps run leaves one, and heterps compare --json prints one.",
    "stages": BEGUN,
    "timeline": BEGUN,
    "curves": BEGUN,
    "store": "Nothing was recorded of tables: it is for tables of the training process, not for those on servers.",
    "environment": "There is no environment.json: heterps train and heterps run write it.",
    "job": "There is no job.yaml: heterps train and heterps run write it.",
}
"""By section, what would put it there."""


class RunReader:
    """Reads a run again and again: telemetry from where it was, the other files when they have changed.

    Args:
        path: the run's directory, which need not be there yet.
        clock: time of day in seconds.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._telemetry = TelemetryReader(path / TELEMETRY)
        self._planning: tuple[object, RunFiles, dict[str, Any]] | None = None
        self._others: tuple[object, dict[str, Any]] | None = None

    def read(self, *, live: bool = False) -> dict[str, Any]:
        """The run as it is now. `live` shows the newest steps, and reads long telemetry piece by piece."""
        caught_up = self._telemetry.poll(most_bytes=LIVE_BYTES if live else None)
        files, planned = self._read_planning()
        others = self._read_others()
        job, environment = others["job.yaml"], others["environment.json"]
        telemetry = self._telemetry
        now = state.of_run(self.path, telemetry, clock=self._clock)
        result = others["result.json"] if now == state.OVER and self._is_of_last_session() else None
        found = measured.measured(telemetry, result, job, planned["plan"])
        stages = measured.stages(telemetry, result, planned["plan"], found)
        data: dict[str, Any] = {
            "format": FORMAT,
            "run": _run(self.path, telemetry, job, result, now) | {"caught_up": caught_up},
            "types": planning.types(files, [stage["type"] for stage in stages or ()]),
            **planned,
            "measured": found,
            "stages": stages,
            "timeline": timeline(telemetry, newest=now == state.RUNNING),
            "curves": measured.curves(telemetry, found["batch_size"]),
            "store": measured.store(telemetry),
            "environment": environment,
            "job": job,
        }  # fmt: skip
        data["verdict"] = verdict(data)
        data["missing"] = _missing(data, planned["missing"])
        data["wrong"] = sorted({**files.wrong, **others["wrong"]}.values())
        if telemetry.damaged:
            data["wrong"].append(f"{telemetry.damaged} lines of {TELEMETRY} are no records and were passed over")
        return _plain(data)  # type: ignore[no-any-return]

    def _read_planning(self) -> tuple[RunFiles, dict[str, Any]]:
        """Planning's sections. The frontier may take a second to compute, so they are kept."""
        current = signature(self.path, PLANNING)
        if self._planning is None or self._planning[0] != current:
            files = read_planning(self.path)
            self._planning = current, files, _planned(files)
        return self._planning[1], self._planning[2]

    def _read_others(self) -> dict[str, Any]:
        current = signature(self.path, OTHERS)
        if self._others is None or self._others[0] != current:
            wrong: dict[str, str] = {}
            found = {name: read_object(self.path, name, wrong) for name in OTHERS if name != "result.json"}
            self._others = current, {**found, "result.json": read_result(self.path, wrong), "wrong": wrong}
        return self._others[1]

    def _is_of_last_session(self) -> bool:
        """Whether the result was written after the last session began; one that fails leaves that of an earlier one."""
        began = self._telemetry.session.unix_s
        try:
            return began is None or (self.path / "result.json").stat().st_mtime >= began - 1
        except OSError:
            return False


def read_run(path: Path) -> dict[str, Any]:
    """A run directory as one object that JSON can hold."""
    return RunReader(path).read()


def _planned(files: RunFiles) -> dict[str, Any]:
    found, reason = planning.frontier_section(files)
    rent = files.rent_plan
    return {
        "chain": planning.chain(files.rent_profile) if files.rent_profile is not None else None,
        "plan": planning.plan_section(files.plan, files.profile, files.cluster) if files.plan is not None else None,
        "rent": planning.plan_section(rent, files.rent_profile, files.rent_cluster) if rent is not None else None,
        "frontier": found,
        "comparison": planning.comparison_section(files.comparison) if files.comparison is not None else None,
        "missing": {"frontier": reason} if reason is not None else {},
    }


def _run(
    path: Path, telemetry: TelemetryReader, job: dict[str, Any] | None, result: dict[str, Any] | None, now: str
) -> dict[str, Any]:
    session = telemetry.session
    done = session.done.last
    return {
        "name": path.name,
        "state": now,
        "stopped": (result or {}).get("stopped"),
        "started_unix_s": telemetry.started_unix_s,
        "seconds": session.last_t,
        "sessions": telemetry.sessions,
        "step": (result or {}).get("steps") or (int(done[1]) if done else 0),
        "steps": number(part(job, "train").get("steps")),
    }


def _missing(data: dict[str, Any], known: dict[str, str]) -> dict[str, str]:
    return {
        section: known.get(section, MISSING.get(section, "")) for section in ("frontier", *MISSING)
        if data[section] is None
    }  # fmt: skip


def _plain(value: Any) -> Any:
    """A copy without the numbers that JSON does not know."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if value is None or isinstance(value, bool | int | str) else str(value)
