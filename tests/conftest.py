"""What every test gets: the working tree for its imports, and a check that it tidies up."""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from pymq.errors import MissingExtra
from pymq.testing.zookeeper import find_jars

if TYPE_CHECKING:
    from collections.abc import Iterator

# Last, not first: examples and benchmarks come from here, but pymq from wherever it is installed,
# which under tox is the wheel.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# How long an example takes is decided by who else uses the machine.
settings.register_profile("pymq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pymq")

GRACE_S = 2.0  # a thread that was told to stop may need a moment to do so


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the outputs in scripts be written anew; they are to be reviewed like any other claim."""
    parser.addoption(
        "--rewrite-scripts",
        action="store_true",
        help="put what really comes of each command into the scripts of tests/data",
    )


class Failures:
    """Names each failure as it happens: whoever stops a long run wants to know what has failed."""

    def __init__(self, terminalreporter: pytest.TerminalReporter) -> None:
        self.terminalreporter = terminalreporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)  # a bare text has none
            why = report.longreprtext if crash is None else crash.message
            why = why.strip().partition("\n")[0]
            self.terminalreporter.write_line(f"\nfailed: {report.nodeid} ({report.when}): {why}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say at once what has failed, where there is somebody to say it to: not in a worker."""
    plugins = session.config.pluginmanager
    terminalreporter = plugins.get_plugin("terminalreporter")
    if terminalreporter is not None and not hasattr(session.config, "workerinput"):
        plugins.register(Failures(terminalreporter), "pymq-failures")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell what was measured: of planted bugs how soon they were found, of faults what came."""
    _tell_planted(terminalreporter)
    _tell(terminalreporter, "marks", "marks")
    _tell(terminalreporter, "faults", "faults of processes")
    _tell(terminalreporter, "fuzz", "malformed inputs")


def _tell(terminalreporter: pytest.TerminalReporter, what: str, title: str) -> None:
    reports = [
        str(told)
        for report in terminalreporter.getreports("passed")
        for name, told in report.user_properties
        if name == what and report.when == "call"
    ]
    if reports:
        terminalreporter.section(title)
        for told in reports:
            terminalreporter.write_line(told)


def _tell_planted(terminalreporter: pytest.TerminalReporter) -> None:
    """Tell how many runs it took to find each planted bug, and which rule has found it."""
    rows = [
        tuple(map(str, row))
        for report in terminalreporter.getreports("passed")
        for name, row in report.user_properties
        if name == "planted"
    ]
    if not rows:
        return
    rows = [("level", "area", "bug", "runs", "seed", "found by"), *sorted(set(rows))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    terminalreporter.section("planted bugs")
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        terminalreporter.line("  ".join(cells).rstrip())


@pytest.fixture
def rewrite_scripts(request: pytest.FixtureRequest) -> bool:
    """Whether scripts are to be written anew and not compared."""
    return bool(request.config.getoption("--rewrite-scripts"))


@pytest.fixture(scope="session")
def needs_zookeeper() -> None:
    """Skip, and say so, where a ZooKeeper cannot be started."""
    try:
        find_jars()
    except MissingExtra as missing:
        pytest.skip(f"no real ZooKeeper here: {missing}")


@pytest.fixture(autouse=True)
def leaves_nothing_running() -> Iterator[None]:
    """Fail a test that leaves a thread or a child process behind: the next one would pay.

    A fixture that several tests share is not at fault, if all it starts is started when it yields.
    """
    before = running()
    yield
    deadline = time.monotonic() + GRACE_S
    while left := running() - before:
        if time.monotonic() > deadline:
            pytest.fail("left running: " + ", ".join(sorted(left)))
        time.sleep(0.01)


def running() -> set[str]:
    """Name the threads and child processes of this process."""
    threads = {
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        # pyzmq keeps one for the process, which frees what was sent without being copied.
        if type(thread).__module__ != "zmq.utils.garbage" and not is_of_spark(thread)
    }
    return threads | {f"process {pid}" for pid in children()}


def is_of_spark(thread: threading.Thread) -> bool:
    """Tell whether the JVM speaks with us through *thread*; such a line stays for the next call."""
    target = getattr(thread, "_target", None)  # the only thing that tells them from others
    owner = getattr(target, "__self__", None)
    return type(owner).__module__.startswith("py4j.")


def children() -> set[int]:
    """List the child processes, except helpers of multiprocessing that live as long as we do."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():  # not Linux: at least those that multiprocessing knows
        return {child.pid for child in multiprocessing.active_children() if child.pid}
    found = set()
    for task in tasks.iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except OSError:
            continue  # the thread ended while we looked, or this kernel does not tell
    return {pid for pid in found if not is_helper(pid)}


def is_helper(pid: int) -> bool:
    """Tell whether *pid* is a process that multiprocessing keeps for later."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # it has ended
    return (
        b"multiprocessing.resource_tracker" in command or b"multiprocessing.forkserver" in command
    )
