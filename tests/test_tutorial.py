"""The tutorial's programs run in their order and print the shown output."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from pymq.testing.child import free_ports

ROOT = Path(__file__).resolve().parents[1]
TUTORIAL = ROOT / "docs/tutorial"
SECONDS = 120
PORT = "7878"  # the port in the page; the test replaces it by a free port


class Step(NamedTuple):
    """A block of a page."""

    kind: str  # python, sh, or text: the output of the program before it
    text: str


def steps(page: str) -> list[Step]:
    """Return the blocks of a page that are programs, or their output."""
    found = re.findall(r"(?ms)^```(\w+)\n(.*?)^```$", (TUTORIAL / page).read_text())
    return [Step(*block) for block in found if block[0] in ("python", "sh", "text")]


def run(*command: str, folder: Path) -> str:
    """Return a program's output; it must end without an error."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_python(text: str, folder: Path) -> str:
    if "def test_" in text:
        (folder / "test_mine.py").write_text(text)
        # Where pymq is installed, the plugin is loaded automatically.
        options = "-q -p no:cacheprovider -p pymq.testing.pytest_plugin -c /dev/null --rootdir ."
        found = run(sys.executable, "-m", "pytest", *options.split(), folder=folder)
        assert "1 passed" in found, found
        return ""
    return run(sys.executable, "-W", "error", "-c", text, folder=folder)


def walk(page: str, folder: Path, port: str = PORT) -> None:
    """Run a page, step after step."""
    printed = ""
    for step in steps(page):
        text = step.text.replace(PORT, port)
        if step.kind == "python":
            printed = run_python(text, folder)
        elif step.kind == "text":
            assert printed == text
        else:
            for line in text.splitlines():
                run_shell(line, folder)


def run_shell(line: str, folder: Path) -> None:
    program, *arguments = line.split()
    if program == "pymq":
        run(sys.executable, "-m", "pymq", *arguments, folder=folder)
    elif arguments[0] != "examples/local_cluster.py":
        # the commands before have started this program already
        assert program == "python"
        run(sys.executable, str(ROOT / arguments[0]), *arguments[1:], folder=folder)


@pytest.mark.parametrize("page", ["1-folder.md", "2-groups.md", "3-simulation.md"])
def test_a_page(page: str, tmp_path: Path) -> None:
    assert sum(step.kind == "text" for step in steps(page)) >= 3
    walk(page, tmp_path)
    # Readers may run a page twice; the numbers on the page must be right each time. A simulation
    # leaves nothing behind.
    if page != "3-simulation.md":
        walk(page, tmp_path)


@pytest.mark.slow
def test_the_page_with_a_folder_after_others(tmp_path: Path) -> None:
    """The page works in a folder in which its programs ended early, and after another page."""
    programs = [step.text for step in steps("1-folder.md") if step.kind == "python"]
    for program in (programs[0], programs[3], programs[3]):
        run_python(program, tmp_path)
    walk("2-groups.md", tmp_path)
    walk("1-folder.md", tmp_path)


@pytest.mark.slow
def test_the_page_with_brokers(tmp_path: Path) -> None:
    """Run the page twice on a cluster that has a topic `orders`, as after the README's commands."""
    port = free_ports(1)[0] % 20_000 + 10_000
    with local_cluster(port, tmp_path):
        run_shell(f"pymq topic create orders --url zmq+tcp://127.0.0.1:{port}", tmp_path)
        walk("4-brokers.md", tmp_path, str(port))
        walk("4-brokers.md", tmp_path, str(port))


@pytest.mark.slow
def test_the_commands_of_the_readme(tmp_path: Path) -> None:
    """Run the README's commands from the clone to a cluster with records, except installations and
    endless commands.
    """
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"(?ms)^## A cluster of three brokers$.*?^```sh\n(.*?)^```$", page)
    lines = text.splitlines()
    assert 5 <= len(lines) < 10
    port = free_ports(1)[0] % 20_000 + 10_000
    begin = next(i for i, line in enumerate(lines) if "cluster start" in line) + 1
    script = "\n".join(line for line in lines[begin:] if "pymq ui" not in line)
    with local_cluster(port, tmp_path) as page_url:
        pymq = f'pymq() {{ "{sys.executable}" -m pymq "$@"; }}'
        script = script.replace(PORT, str(port))
        told = run("bash", "-euo", "pipefail", "-c", f"{pymq}\n{script}", folder=tmp_path)
        with urllib.request.urlopen(page_url, timeout=SECONDS) as answer:
            assert b"<html" in answer.read()
    assert "broker-2" in told, told


@contextmanager
def local_cluster(port: int, folder: Path) -> Iterator[str]:
    """Start the first program; returns the address of the cluster's page."""
    http = f"127.0.0.1:{free_ports(1)[0]}"
    command = [sys.executable, str(ROOT / "examples/local_cluster.py"), "--data", "cluster"]
    command += ["--port", str(port), "--coordinator", f"sqlite:{folder / 'zkserver.db'}"]
    command += ["--http", http]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment
    )
    assert process.stdout is not None
    rest = threading.Thread(target=process.stdout.read)
    try:
        assert any(line.startswith("cluster is ready: ") for line in process.stdout)
        rest.start()
        yield f"http://{http}/"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS)
        rest.join()
        process.stdout.close()


def test_every_page_is_walked() -> None:
    pages = {path.name for path in TUTORIAL.glob("*.md")} - {"index.md"}
    assert pages == {"1-folder.md", "2-groups.md", "3-simulation.md", "4-brokers.md"}
