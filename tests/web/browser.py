"""A real Chromium without a window, controlled over a pipe by its protocol (CDP).

This control needs no driver and no port: messages are JSON, each followed by a zero byte.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from pymq.client.base import Handle

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome", "chrome")
WAIT_S = 60.0  # limit of any wait, on a machine with other load


def find() -> str | None:
    """Find the program, if there is one; ``PYMQ_CHROMIUM`` names another."""
    named = os.environ.get("PYMQ_CHROMIUM")
    names = NAMES if named is None else (named,)
    return next(filter(None, map(shutil.which, names)), None)


class Browser(Handle):
    """One browser process with any number of pages."""

    def __init__(self, program: str, folder: Path) -> None:
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        options = [
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--disable-extensions", "--disable-background-networking"),
            *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
            *("--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"),
        ]
        # The browser reads from descriptor 3 and writes to 4, which may be in use in this process.
        start = (
            "import os, sys; r, w = os.dup(int(sys.argv[1])), os.dup(int(sys.argv[2])); "
            "r, w = os.dup(r), os.dup(w); os.dup2(r, 3); os.dup2(w, 4); "
            "os.execv(sys.argv[3], sys.argv[3:])"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", start, str(commands), str(answers), program, *options],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._changed = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=10_000)
        self._asked = 0
        self._is_over = False
        self._reader = threading.Thread(target=self._take_in)
        self._reader.start()

    def _take_in(self) -> None:
        left = b""
        while data := os.read(self._read, 1 << 16):
            *whole, left = (left + data).split(b"\0")
            with self._changed:
                for text in whole:
                    found = json.loads(text)
                    if "id" in found:
                        self._answers[found["id"]] = found
                    else:
                        self.events.append(found)
                self._changed.notify_all()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def call(self, method: str, session: str | None = None, **given: Any) -> dict[str, Any]:
        """Send a command to the browser; returns its answer."""
        self._asked += 1
        number = self._asked
        message: dict[str, Any] = {"id": number, "method": method, "params": given}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        with self._changed:
            there = self._changed.wait_for(
                lambda: number in self._answers or self._is_over, timeout=WAIT_S
            )
            assert there, f"no answer to {method}"
            assert number in self._answers, "the browser has ended"
            answer = self._answers.pop(number)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def page(self, url: str = "about:blank", *, width: int = 1280, height: int = 900) -> Page:
        """Open a page."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setFocusEmulationEnabled", enabled=True)
        page.resize(width, height)
        page.open(url)
        return page

    def close(self) -> None:
        """End the browser and all its processes."""
        try:
            self.call("Browser.close")
        except (AssertionError, OSError):
            self._process.kill()
        self._process.wait(WAIT_S)
        os.close(self._write)
        self._reader.join()
        os.close(self._read)


class Page:
    """One page in the browser."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """Send a command to the page."""
        return self._browser.call(method, self._session, **given)

    def open(self, url: str) -> None:
        """Open a URL."""
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int, *, is_phone: bool = False) -> None:
        """Set the size, in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if is_phone else 1,
            mobile=is_phone,
        )

    def dark(self, is_dark: bool = True) -> None:
        """Let the browser prefer dark colours, or light ones."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def run(self, script: str) -> Any:
        """Return the value of an expression; if it is a promise, its result."""
        answer = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, (script, answer["exceptionDetails"])
        return answer["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + WAIT_S
        # A loading page has no body yet.
        whole = f"(() => {{ try {{ return Boolean({script}); }} catch {{ return false; }} }})()"
        while not self.run(whole):
            assert time.monotonic() < until, (script, self.text())
            time.sleep(0.05)  # A page sends no event for a change.

    def text(self) -> str:
        """Return the visible text."""
        return str(self.run("document.body?.innerText"))

    def press(self, key: str) -> None:
        """Press a key, as ``Tab`` or ``ArrowLeft``."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37, "ArrowRight": 39}
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=codes[key],
                **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {}),
            )

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """Write a picture of the page as PNG."""
        given: dict[str, Any] = {"captureBeyondViewport": True} if whole else {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            given["clip"] = {**size, "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **given)["data"]))

    def complaints(self) -> list[str]:
        """Return the errors logged by the page, violations of its policy included."""
        found = []
        for event in list(self._browser.events):
            if event.get("sessionId") != self._session:
                continue
            given = event.get("params", {})
            match event["method"]:
                case "Runtime.exceptionThrown":
                    details = given["exceptionDetails"]
                    found.append(details.get("exception", {}).get("description", details["text"]))
                case "Log.entryAdded" if given["entry"]["level"] == "error":
                    found.append(given["entry"]["text"])
                case "Runtime.consoleAPICalled" if given["type"] in ("error", "assert"):
                    found.append(str(given["args"]))
                case _:
                    pass
        return found
