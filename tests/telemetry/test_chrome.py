"""Traces: what viewers read from them."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path
from typing import Any

import pytest

from heterps.telemetry import ChromeTrace, Recorder
from tests.telemetry.fakes import LIMIT_S, Clock


def load(path: Path) -> list[dict[str, Any]]:
    events = json.loads(path.read_text())
    assert all({"name", "ph", "pid", "tid"} <= event.keys() for event in events)
    assert len({event["pid"] for event in events}) == 1
    return events


def tracks(events: list[dict[str, Any]]) -> dict[int, str]:
    return {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}


def test_two_stages_have_two_tracks_with_times_and_nesting(tmp_path: Path):
    clock, path = Clock(), tmp_path / "t.json"
    with Recorder([ChromeTrace(path, stages={0: "cpu × 2"})], clock=clock) as recorder:
        clock.now += 1.0
        with recorder.span("forward", stage=0, step=4, micro_batch=1):
            clock.now += 0.001
            with recorder.span("pull", stage=0):
                clock.now += 0.002
            clock.now += 0.003
        with recorder.span("backward", stage=1):
            clock.now += 0.0005
    events = load(path)
    assert tracks(events) == {0: "stage 0 · cpu × 2", 1: "stage 1"}
    spans = {event["name"]: event for event in events if event["ph"] == "X"}
    forward, pull, backward = spans["forward"], spans["pull"], spans["backward"]
    assert (forward["tid"], forward["args"]) == (0, {"step": 4, "micro_batch": 1})
    assert (forward["ts"], forward["dur"]) == (pytest.approx(1_000_000), pytest.approx(6_000))
    assert (pull["tid"], pull["ts"], pull["dur"]) == (0, pytest.approx(1_001_000), pytest.approx(2_000))
    assert (backward["tid"], backward["ts"], backward["dur"]) == (1, pytest.approx(1_006_000), pytest.approx(500))
    named = [event["tid"] for event in events if event["name"] == "thread_name"]
    assert named == [0, 1]  # each once, before its first span


def test_spans_of_a_track_nest_though_times_are_rounded(tmp_path: Path):
    path = tmp_path / "t.json"
    with Recorder([ChromeTrace(path)]) as recorder:
        for step in range(300):
            with recorder.span("forward", stage=0, step=step), recorder.span("pull", stage=0, step=step):
                pass
    spans = [event for event in load(path) if event["ph"] == "X"]
    inner = {event["args"]["step"]: event for event in spans if event["name"] == "pull"}
    outer = {event["args"]["step"]: event for event in spans if event["name"] == "forward"}
    for step in range(300):
        assert outer[step]["ts"] <= inner[step]["ts"]
        assert inner[step]["ts"] + inner[step]["dur"] <= outer[step]["ts"] + outer[step]["dur"] + 1e-6


def test_threads_of_one_stage_and_of_none_have_their_own_tracks(tmp_path: Path):
    path = tmp_path / "t.json"
    with Recorder([ChromeTrace(path, stages={1: "cpu × 2"})]) as recorder:
        ready, inside = threading.Event(), threading.Event()

        def replica() -> None:
            with recorder.span("forward", stage=1):
                inside.set()
            with recorder.span("read"):
                pass
            recorder.flush(LIMIT_S)
            ready.wait(LIMIT_S)

        thread = threading.Thread(target=replica, name="reader")
        with recorder.span("forward", stage=1):
            thread.start()
            assert inside.wait(LIMIT_S)
        recorder.flush(LIMIT_S)
        ready.set()
        thread.join()
    events = load(path)
    assert sorted(tracks(events).values()) == ["reader", "stage 1 · cpu × 2", "stage 1 · cpu × 2 (2)"]
    order = {event["tid"]: event["args"]["sort_index"] for event in events if event["name"] == "thread_sort_index"}
    names = tracks(events)
    assert [names[tid] for tid in sorted(order, key=order.__getitem__)][-1] == "reader"


def test_counters_curves_and_events(tmp_path: Path):
    clock, path = Clock(), tmp_path / "t.json"
    with Recorder([ChromeTrace(path)], clock=clock) as recorder:
        clock.now += 2.0
        recorder.count("rows", 3)
        recorder.scalar("loss", 0.5, step=0)
        recorder.scalar("loss", math.nan, step=1)
        recorder.event("retry", loss=math.nan)
    events = load(path)
    counters = [(event["name"], event["ts"], event["args"]) for event in events if event["ph"] == "C"]
    assert sorted(counters, key=lambda found: found[0]) == [
        ("loss", 2_000_000, {"value": 0.5}),
        ("rows", 2_000_000, {"value": 3}),
    ]
    assert [event["name"] for event in events if event["ph"] == "i"] == ["start", "retry", "end"]
