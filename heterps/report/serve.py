"""A run's report as a page on this machine that follows the run."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from heterps.errors import InvalidInput
from heterps.report.data import RunReader
from heterps.report.page import render_page

LEAST_AGE_S = 0.7
"""The run is read at most so often, however many pages are open (assumed: a page asks every 1.5 s)."""


class Follower:
    """The newest data of a run, read when it is asked for. `find` gives the run's directory, which may change."""

    def __init__(self, find: Callable[[], Path], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._find, self._clock = find, clock
        self._lock = threading.Lock()
        self._reader: RunReader | None = None
        self._read_at = -float("inf")
        self._data: dict[str, Any] = {}

    def data(self) -> dict[str, Any]:
        """The run as it is now, or was a moment ago."""
        with self._lock:
            if self._clock() - self._read_at >= LEAST_AGE_S or not self._data:
                path = self._find()
                if self._reader is None or self._reader.path != path:
                    self._reader = RunReader(path)
                self._data = self._reader.read(live=True)
                self._read_at = self._clock()
            return self._data


class ReportServer(ThreadingHTTPServer):
    """Serves a run's page and its data. Only to those who call it by an address or by the name it was given.

    A page of another site can have its own name resolve to this machine and then read what is served here; the browser
    tells that name in the Host header, and it is refused.
    """

    daemon_threads = True

    def __init__(self, follower: Follower, *, host: str, port: int) -> None:
        self.follower = follower
        self._host = host
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise InvalidInput(
                f"cannot serve on {host}:{port} ({why}); choose another --port, or 0 for any that is free"
            ) from None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed while it was answered is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """Where the page is."""
        host = "127.0.0.1" if self._host in ("", "0.0.0.0") else self._host
        return f"http://{host}:{self.server_address[1]}/"

    def is_for_us(self, host: str | None) -> bool:
        """Whether a Host header names this server: an address, localhost, or the name it was told to serve on."""
        if not host:
            return False
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        name = name.strip("[]").lower().rstrip(".")
        if name in ("localhost", self._host.lower()):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._only_here()

    def _only_here(self) -> bool:
        try:
            return ipaddress.ip_address(self._host).is_loopback
        except ValueError:
            return self._host == "localhost"


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    protocol_version = "HTTP/1.0"  # a connection for each answer: none outlives the server
    server_version, sys_version = "heterps", ""
    timeout = 30

    def do_GET(self) -> None:
        """The page, or its data."""
        if not self.server.is_for_us(self.headers.get("Host")):
            self._answer(403, b"this server is for the machine it runs on\n", "text/plain; charset=utf-8")
            return
        path = self.path.partition("?")[0]
        if path == "/":
            page = render_page(self.server.follower.data(), live=True)
            self._answer(200, page.encode(), "text/html; charset=utf-8")
        elif path == "/data.json":
            body = json.dumps(self.server.follower.data(), allow_nan=False, separators=(",", ":")).encode()
            tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            same = self.headers.get("If-None-Match") == tag
            self._answer(304 if same else 200, b"" if same else body, "application/json", tag=tag)
        else:
            self._answer(404, b"there is / and /data.json\n", "text/plain; charset=utf-8")

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: int, body: bytes, kind: str, *, tag: str | None = None) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind, "Content-Length": str(len(body)), "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }  # fmt: skip
        for name, value in {**headers, **({"ETag": tag} if tag else {})}.items():
            if not (status == 304 and name.startswith("Content-L")):
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: a page asks all the time."""
