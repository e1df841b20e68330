"""What a run says of the place it ran in."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import torch

import heterps
from heterps.telemetry.environment import describe_environment


def test_versions_and_hardware_are_those_of_this_machine() -> None:
    found = describe_environment()
    assert (found["heterps"], found["torch"]) == (heterps.__version__, torch.__version__)
    assert found["python"] == platform.python_version()
    assert found["cores"] == len(os.sched_getaffinity(0))
    assert len(found["gpus"]) == torch.cuda.device_count()
    told = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True).stdout.strip()
    assert told in found["os"]
    kib = int(Path("/proc/meminfo").read_text().split()[1])
    assert abs(found["memory_bytes"] - 1024 * kib) < 0.01 * found["memory_bytes"]


def test_it_is_json() -> None:
    found = describe_environment()
    assert json.loads(json.dumps(found)) == found
