"""``pymq ui`` prints the address of the page, serves it, and ends on request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import pymq
from pymq.cli import main
from tests.web.helpers import ask, fill

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("is_json", [False, True])
def test_it_serves_a_folder_until_it_is_stopped(tmp_path: Path, is_json: bool) -> None:
    with pymq.open(tmp_path) as mq:
        fill(mq)
    command = [sys.executable, "-m", "pymq", "ui", str(tmp_path), "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, *(["--json"] if is_json else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while is_json and lines[-1] not in ("}\n", ""):
            lines.append(process.stdout.readline())
        url = json.loads("".join(lines))["url"] if is_json else lines[0].strip()
        address, _, token = url.partition("#token=")
        assert len(token) >= 32
        state = ask(address, "/api/state", token=token).json
        assert [topic["name"] for topic in state["topics"]] == ["clicks", "orders"]
        assert not state["writable"]
        assert ask(address, "/api/state", token="another").status == 401
        assert "pymq_messages_in_total" in ask(address, "/metrics", token=token).text
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def test_a_browser_is_not_told_the_token_where_others_read_it(tmp_path: Path) -> None:
    """All users of the machine can see the arguments of a process."""
    browser, told = tmp_path / "browser", tmp_path / "told"
    browser.write_text(
        "#!/usr/bin/env python3\n"
        "import pathlib, sys, urllib.parse\n"
        "page = pathlib.Path(urllib.parse.urlsplit(sys.argv[1]).path)\n"
        "modes = oct(page.parent.stat().st_mode & 0o077)\n"
        f"pathlib.Path({str(told)!r}).write_text(modes + repr(sys.argv) + page.read_text())\n"
    )
    browser.chmod(0o755)
    with pymq.open(tmp_path / "data"):
        pass
    command = [sys.executable, "-m", "pymq", "ui", str(tmp_path / "data")]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0", "--open"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "BROWSER": str(browser),
            "TMPDIR": str(tmp_path),
        },
    )
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        while not told.exists() or not told.read_text().endswith("</a>\n"):
            assert process.poll() is None
        arguments, page = told.read_text().split("]", 1)
        assert arguments.startswith("0o0[")
        token = url.partition("#token=")[2]
        assert token not in arguments
        assert f'href="{url}"' in page
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not list(tmp_path.glob("pymq-ui-*"))
    finally:
        watchdog.cancel()
        process.kill()
        process.communicate()


def test_what_cannot_be_shown_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYMQ_URL", raising=False)
    assert main(["ui", str(tmp_path / "nothing")]) == 1
    assert "there is no queue" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()
    assert main(["ui"]) == 2
    assert "no queue given" in capsys.readouterr().err
    with pymq.open(tmp_path):
        assert main(["ui", str(tmp_path)]) == 1
        assert "STORE_LOCKED" in capsys.readouterr().err
    assert main(["ui", str(tmp_path), "--listen", "0.0.0.0:0", "--json"]) == 2
    error = json.loads(capsys.readouterr().err)["error"]
    assert error["code"] == "CONFIG_ERROR"
    assert "open to the network" in error["message"]
    assert main(["ui", "http://127.0.0.1:1"]) == 2
