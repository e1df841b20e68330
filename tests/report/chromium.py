"""A real browser without a window, driven by the DevTools protocol over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

BINARY = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(BINARY is None, reason="no chromium here: apt-get install chromium")
LIMIT_S = 150.0


class Chromium:
    """One browser with one page. It has no network: every name is resolved to nothing but this machine's."""

    def __init__(self, profile: Path) -> None:
        assert BINARY is not None
        theirs_in, self._to = os.pipe()
        self._from, theirs_out = os.pipe()

        def as_expected() -> None:  # the protocol is read from file 3 and written to file 4
            kept = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(kept[0], 3)
            os.dup2(kept[1], 4)

        self._process = subprocess.Popen(
            [BINARY, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
             "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
             "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(3, 4, theirs_in, theirs_out),
            preexec_fn=as_expected,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._rest, self._number = b"", 0
        self._session: str | None = None
        self.errors: list[str] = []
        """What the page complained about since `open`."""
        self.asked: list[str] = []
        """Addresses it asked for since `open`."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """A command and its answer; events that come before it are looked at."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self._event(answer)

    def view(self, width: int, height: int = 900, *, dark: bool = False, phone: bool = False) -> None:
        """The size of the window, and which colours the reader prefers."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        preferred = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[preferred])

    def open(self, address: str) -> None:
        """Goes to an address and waits until the page has drawn itself."""
        self.errors.clear()
        self.asked.clear()
        self.call("Page.navigate", url=address)
        self.wait("document.readyState === 'complete' && document.querySelector('section h2') !== null")

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression in the page is true."""
        end = time.monotonic() + LIMIT_S
        watch = f"""new Promise((tell) => {{
            const end = Date.now() + 500, look = () => {{
                const met = Boolean({condition});
                if (met || Date.now() > end) tell(met); else setTimeout(look, 20);
            }};
            look();
        }})"""
        while not self.run(watch):
            assert time.monotonic() < end, f"never came true: {condition}"

    def wait_for_error(self, text: str) -> None:
        """Until the page has complained about something: that comes by another way than answers do."""
        end = time.monotonic() + LIMIT_S
        while not any(text in error for error in self.errors):
            assert time.monotonic() < end, f"no error with {text!r}: {self.errors}"
            self.run("new Promise((tell) => setTimeout(tell, 20))")

    def screenshot(self, path: Path) -> None:
        """The whole page, however long, as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            block = os.read(self._from, 1 << 20)
            assert block, "the browser has gone"
            self._rest += block
        message, _, self._rest = self._rest.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _event(self, message: dict[str, Any]) -> None:
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(str(params["args"]))
        elif method == "Network.requestWillBeSent":
            self.asked.append(params["request"]["url"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait(LIMIT_S)
        os.close(self._to)
        os.close(self._from)
