"""Subjects of a benchmark: processes that stay ready and take turns, so that all are measured on the same machine."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Turns:
    """A subject in its process, which answers lines of JSON by lines of JSON. `failure` says why there is none."""

    def __init__(self, script: str, name: str, python: str, spec: dict[str, Any]) -> None:
        self.name, self.failure, self.ready = name, "", {}
        threads = str(spec.get("threads", 1))
        quiet = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONWARNINGS": "ignore"}
        quiet |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        try:
            self.process = subprocess.Popen(
                [python, str(HERE / script), json.dumps(spec)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
                env={**os.environ, **quiet},
            )  # fmt: skip
        except OSError as error:
            self.failure = str(error)
            return
        self.ready = self._answer()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request; empty if the subject is missing."""
        if self.failure:
            return {}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """The next answer; without one, the last line the process wrote is the failure."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if line:
            return dict(json.loads(line))
        self.process.wait()
        self.errors.seek(0)
        self.failure = (self.errors.read().strip().splitlines() or ["no answer"])[-1]
        return {}

    def close(self) -> None:
        """Lets the process end by itself."""
        if hasattr(self, "process"):
            if self.process.stdin is not None:
                self.process.stdin.close()
            self.process.wait(timeout=120)
        self.errors.close()
