"""A run's figures for Prometheus: its text format 0.0.4, served over HTTP. It can be read, and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SLOW_CLIENT_S = 5.0
"""After which a client that says nothing is left."""

Sample = tuple[Mapping[str, str], float]


def render(status: Mapping[str, Any]) -> str:
    """A status (`heterps.runtime.cluster.status`) as metrics; what is not known yet is left out."""
    lines = []
    for name, kind, about, samples in _families(status):
        if samples:
            lines += [f"# HELP heterps_{name} {about}", f"# TYPE heterps_{name} {kind}"]
        for labels, value in samples:
            every = {"job": str(status["job"]), **labels}
            inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in every.items())
            lines.append(f"heterps_{name}{{{inner}}} {float(value)!r}".replace("nan", "NaN").replace("inf", "Inf"))
    return "\n".join(lines) + "\n"


def _families(status: Mapping[str, Any]) -> Iterator[tuple[str, str, str, list[Sample]]]:
    def one(key: str) -> list[Sample]:
        return [] if status[key] is None else [({}, status[key])]

    saved = status["checkpoint"]
    yield "samples_total", "counter", "Samples trained, those before a resume included.", one("samples")
    yield "step", "gauge", "Steps done.", one("step")
    yield "loss", "gauge", "Loss of the last step.", one("loss")
    yield "auc", "gauge", "AUC over the run's own scores.", one("auc")
    yield "samples_per_second", "gauge", "Throughput of the last seconds.", one("samples_per_s")
    yield "busy_ratio", "gauge", "Share of the last stretch in which a replica computed.", _of_replicas(status, "busy")
    yield "slow_times", "gauge", "How many times as long a straggler takes as the others.", _of_replicas(status, "slow")
    yield "attempts_total", "counter", "Times that all processes were started.", one("attempts")
    restarts: list[Sample] = [({"reason": reason}, times) for reason, times in status["restarts"].items()]
    yield "restarts_total", "counter", "Restarts from a checkpoint.", restarts
    for key, about in (
        ("step", "Step of the newest checkpoint."),
        ("age_seconds", "Seconds since the newest checkpoint was committed."),
        ("seconds", "What the newest checkpoint took."),
    ):
        field = {"age_seconds": "age_s", "seconds": "took_s"}.get(key, key)
        yield f"checkpoint_{key}", "gauge", about, [] if saved is None else [({}, saved[field])]
    for figure, about in (("rows", "Rows of a table."), ("bytes", "Memory of a table.")):
        found: list[Sample] = [({"table": name}, table[figure]) for name, table in status["tables"].items()]
        yield f"table_{figure}", "gauge", about, found


def _of_replicas(status: Mapping[str, Any], figure: str) -> list[Sample]:
    return [
        (
            {"stage": str(number), "replica": str(place), "type": stage["type"], "machine": replica["machine"] or ""},
            replica[figure],
        )
        for number, stage in enumerate(status["stages"])
        for place, replica in enumerate(stage["replicas"])
        if replica[figure] is not None
    ]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class MetricsServer:
    """Serves `/metrics` from threads of this process; GET and HEAD are all it knows."""

    def __init__(self, status: Callable[[], Mapping[str, Any]], *, host: str, port: int) -> None:
        """Listens on `host`; `port` 0 takes any that is free. An `OSError` if it cannot."""
        self._server = ThreadingHTTPServer((host, port), _handler(status))
        self._server.daemon_threads = True
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._server.server_address[1]}/metrics"
        threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Ends it."""
        self._server.shutdown()
        self._server.server_close()


def _handler(status: Callable[[], Mapping[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = SLOW_CLIENT_S

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            text = render(status()).encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if body:
                self.wfile.write(text)

        def log_message(self, *args: Any) -> None:
            """Nothing: whoever asks every few seconds would fill the log."""

    return Handler
