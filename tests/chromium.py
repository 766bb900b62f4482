"""A real Chromium without a window, driven over a pipe by its own protocol (``--remote-debugging-pipe``)."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_S = 60


_WITH_PIPES = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads what it is asked from file 3 and answers in file 4."""


def found() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class Chromium:
    """The browser with one page. What the page complains of and asks the network for is kept."""

    def __init__(self, profile: Path) -> None:
        program = found()
        assert program is not None
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-IS", "-c", _WITH_PIPES, str(read), str(write), program),
                "--headless=new",
                "--remote-debugging-pipe",
                "--no-sandbox",  # for root, and the pages are our own
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
                f"--user-data-dir={profile}",
                "about:blank",
            ],
            pass_fds=(read, write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile), "DBUS_SESSION_BUS_ADDRESS": "disabled:"},
        )
        os.close(read)
        os.close(write)
        self._number, self._unread, self._session = 0, b"", None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        try:
            self._attach()
        except BaseException:
            self.close()
            raise

    def _attach(self) -> None:
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End the browser that was started here, however it is."""
        try:
            self._session = None
            self.send("Browser.close")
            self._process.wait(10)
        except (OSError, AssertionError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._from)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser for something, and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._from], [], [], PATIENCE_S)
            assert ready, "Chromium does not answer"
            chunk = os.read(self._from, 1 << 20)
            assert chunk, "Chromium has ended"
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.complaints.append(json.dumps(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.complaints.append(json.dumps(parameters["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def open(self, path: Path, width: int = 1400, height: int = 1000) -> None:
        """Open a file and wait until its page says that it is ready."""
        self.complaints.clear()
        self.requests.clear()
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.send("Page.navigate", url="about:blank")
        self.requests.clear()
        self.send("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("document.documentElement?.dataset.ready === 'yes'")

    def wait_for(self, condition: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self.run(condition):
            assert time.monotonic() < deadline, f"{condition} does not come true: {self.complaints}"
            time.sleep(0.05)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def place(self, selector: str) -> tuple[float, float]:
        """The middle of an element, scrolled into view."""
        box = self.run(
            f"(async () => {{ const one = document.querySelector({json.dumps(selector)});"
            "one.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const frame = () => new Promise(requestAnimationFrame);"
            "await frame(); await frame();"  # what listens for scrolling has heard of it
            "const box = one.getBoundingClientRect();"
            "return [box.left + box.width / 2, box.top + box.height / 2]; })()"
        )
        return box[0], box[1]

    def point(self, selector: str) -> None:
        """Move the mouse onto an element."""
        x, y = self.place(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """A real click of the mouse."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """From one place to another with the button down."""
        for kind, (x, y) in (("mousePressed", start), ("mouseMoved", end), ("mouseReleased", end)):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)

    def press(self, key: str) -> None:
        """A real key: ``Enter``, ``Escape``, ``Tab``, ``ArrowDown``, or a letter."""
        codes = {
            "Enter": 13,
            "Escape": 27,
            "Tab": 9,
            "ArrowLeft": 37,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowDown": 40,
        }
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        code = codes.get(key, ord(key[0].upper()))
        self.send(
            "Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text, windowsVirtualKeyCode=code
        )
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)
