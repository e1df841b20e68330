"""The live page's server: what it answers, whom it refuses, what it waits for."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heterps.errors import InvalidInput
from heterps.report.serve import LEAST_AGE_S, Follower, ReportServer
from tests.report.runs import make_run, records, write_telemetry


@contextmanager
def serving(path: Path, *, clock: list[float] | None = None) -> Iterator[ReportServer]:
    follower = Follower(lambda: path) if clock is None else Follower(lambda: path, clock=lambda: clock[0])
    with ReportServer(follower, host="127.0.0.1", port=0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(
    server: ReportServer, path: str = "/", *, host: str | None = None, method: str = "GET", **headers: str
) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=150)
    try:
        connection.putrequest(method, path, skip_host=True)
        if host != "":
            connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReportServer]:
    with serving(make_run(tmp_path_factory.mktemp("runs") / "run", steps=30, rent=False)) as server:
        yield server


def test_it_serves_the_page_and_its_data(server: ReportServer) -> None:
    status, headers, page = get(server)
    assert (status, headers["Content-Type"], headers["Cache-Control"]) == (200, "text/html; charset=utf-8", "no-store")
    assert b"connect-src 'self'" in page
    assert b'{"live":true,' in page
    status, headers, body = get(server, "/data.json")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["run"]["name"] == "run"
    assert "Access-Control-Allow-Origin" not in headers
    assert get(server, "/telemetry.jsonl")[0] == get(server, "/../job.yaml")[0] == 404
    assert get(server, "/?x=1")[0] == 200
    assert get(server, method="HEAD")[2] == b""
    assert get(server, method="POST")[0] == 501


def test_what_has_not_changed_is_not_sent_again(server: ReportServer) -> None:
    _, headers, _ = get(server, "/data.json")
    status, _, body = get(server, "/data.json", If_None_Match=headers["ETag"])
    assert (status, body) == (304, b"")
    assert get(server, "/data.json", If_None_Match='"other"')[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8383", "localhost", "LOCALHOST:1", "[::1]:8383"])
def test_names_of_this_machine_are_answered(server: ReportServer, host: str) -> None:
    assert get(server, host=host)[0] == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8383", "localhost.evil.example", "192.0.2.7", "x", "",
                                  "127.0.0.1.evil.example", "[::2]", "127.0.0.1@evil.example"])  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/data.json"])
def test_foreign_names_are_refused(server: ReportServer, host: str, path: str) -> None:
    status, _, body = get(server, path, host=host)
    assert status == 403
    assert b"heterps" not in body


def test_on_request_it_serves_others_by_address(tmp_path: Path) -> None:
    with ReportServer(Follower(lambda: tmp_path), host="0.0.0.0", port=0) as server:
        assert server.is_for_us("192.0.2.7:80")
        assert server.is_for_us("localhost")
        assert not server.is_for_us("evil.example")
        assert server.address.startswith("http://127.0.0.1:")


def test_a_port_that_is_taken_is_an_error_for_users(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InvalidInput, match="--port"):
        ReportServer(Follower(lambda: tmp_path), host="127.0.0.1", port=taken.getsockname()[1])


def test_it_waits_for_a_run_and_follows_it(tmp_path: Path) -> None:
    run, clock = tmp_path / "later", [0.0]

    def data() -> dict[str, object]:
        clock[0] += 1
        found: dict[str, dict[str, object]] = json.loads(get(server, "/data.json")[2])
        return found["run"]

    with serving(run, clock=clock) as server:
        assert data()["state"] == "waiting"
        run.mkdir()
        assert data()["state"] == "waiting"
        write_telemetry(run / "telemetry.jsonl", records(steps=20, ended=False))
        assert (data()["state"], data()["step"]) == ("running", 20)
        more = [record for record in records(steps=60) if record["kind"] == "span" and record.get("step", 0) >= 20]
        write_telemetry(run / "telemetry.jsonl", more, append=True)
        assert (data()["state"], data()["step"]) == ("running", 60)
        write_telemetry(run / "telemetry.jsonl", [{"t": 9, "kind": "event", "name": "end", "fields": {}}], append=True)
        assert data()["state"] == "over"


def test_many_pages_read_the_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, clock = make_run(tmp_path / "run", steps=10, planned=False), [0.0]
    follower = Follower(lambda: run, clock=lambda: clock[0])
    first = follower.data()
    assert follower.data() is first
    clock[0] += LEAST_AGE_S
    assert follower.data() is not first


def test_another_run_takes_the_place_of_the_latest(tmp_path: Path) -> None:
    old, new = (make_run(tmp_path / name, steps=10, planned=False) for name in ("old", "new"))
    now, clock = [old], [0.0]
    follower = Follower(lambda: now[0], clock=lambda: clock[0])
    assert follower.data()["run"]["name"] == "old"
    now[0], clock[0] = new, 1.0
    assert follower.data()["run"]["name"] == "new"
