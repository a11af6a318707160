"""Fixtures for all tests: the import path, and a check for leftovers."""

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

# Append instead of inserting first: examples and benchmarks come from here, but pymq from its
# installation, which under tox is the wheel.
sys.path.append(str(Path(__file__).resolve().parents[1]))

# The time limit is disabled, because the time of an example depends on the load of the machine.
settings.register_profile("pymq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("pymq")

GRACE_S = 2.0  # time that a stopping thread may need


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option to rewrite the outputs in scripts.

    Review the new outputs like any other assertion.
    """
    parser.addoption(
        "--rewrite-scripts",
        action="store_true",
        help="put what really comes of each command into the scripts of tests/data",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give all tests of Spark to one worker and those of ZooKeeper to another, because each needs a
    JVM.

    The longest tests run first, so that at the end no worker has to wait for one of them. This hook
    runs before the one in which pytest-xdist reads the groups.
    """
    for item in items:
        for kind in ("spark", "zookeeper"):
            if item.get_closest_marker(kind) is not None:
                item.add_marker(pytest.mark.xdist_group(kind))
                break
    items.sort(key=_turn)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Fail if pytest-xdist ignores the groups: each worker would start a JVM of its own."""
    if getattr(session.config.option, "loadgroup", False):
        for item in session.items:
            group = item.get_closest_marker("xdist_group")
            if group is not None and not item.nodeid.endswith(f"@{group.args[0]}"):
                raise pytest.UsageError("this pytest-xdist ignores groups with this pytest")


def _turn(item: pytest.Item) -> int:
    if item.get_closest_marker("spark") is not None:
        return 0
    return 1 if "test_planted" in item.nodeid or item.get_closest_marker("zookeeper") else 2


class Failures:
    """Prints each failure at once, so that an interrupted long run still shows it."""

    def __init__(self, terminalreporter: pytest.TerminalReporter) -> None:
        self.terminalreporter = terminalreporter

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # the attribute is missing if the report is plain text
            crash = getattr(report.longrepr, "reprcrash", None)
            why = report.longreprtext if crash is None else crash.message
            why = why.strip().partition("\n")[0]
            self.terminalreporter.write_line(f"\nfailed: {report.nodeid} ({report.when}): {why}")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Report failures at once, but not in a worker, which has no terminal."""
    plugins = session.config.pluginmanager
    terminalreporter = plugins.get_plugin("terminalreporter")
    if terminalreporter is not None and not hasattr(session.config, "workerinput"):
        plugins.register(Failures(terminalreporter), "pymq-failures")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print measurements: the number of runs until each planted bug was found, and the reports of
    faults.
    """
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
    """Print how many runs it took to find each planted bug, and the rule that found it."""
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
    """Return whether scripts are to be rewritten instead of compared."""
    return bool(request.config.getoption("--rewrite-scripts"))


@pytest.fixture(scope="session")
def needs_zookeeper() -> None:
    """Skip, with a message, where a ZooKeeper cannot be started."""
    try:
        find_jars()
    except MissingExtra as missing:
        pytest.skip(f"no real ZooKeeper here: {missing}")


@pytest.fixture(autouse=True)
def leaves_nothing_running() -> Iterator[None]:
    """Fail a test that leaves a thread or a child process behind.

    A fixture that several tests share is allowed if all its processes and threads are running when
    it yields.
    """
    before = running()
    yield
    deadline = time.monotonic() + GRACE_S
    while left := running() - before:
        if time.monotonic() > deadline:
            pytest.fail("left running: " + ", ".join(sorted(left)))
        time.sleep(0.01)


def running() -> set[str]:
    """Return the names of the threads and child processes of this process."""
    threads = {
        f"thread {thread.name} ({thread.ident})"
        for thread in threading.enumerate()
        # pyzmq has one such thread for the process, which frees sent messages that were not copied.
        if type(thread).__module__ != "zmq.utils.garbage"
        and not is_of_spark(thread)
        and not is_of_iceberg(thread)
    }
    return threads | {f"process {pid}" for pid in children()}


def is_of_spark(thread: threading.Thread) -> bool:
    """Return whether *thread* is a connection of the JVM.

    Such a connection remains for the next call.
    """
    # the target is the only difference from other threads
    target = getattr(thread, "_target", None)
    owner = getattr(target, "__self__", None)
    return type(owner).__module__.startswith("py4j.")


def is_of_iceberg(thread: threading.Thread) -> bool:
    """Return whether *thread* is of the pool that pyiceberg keeps for the process."""
    module = sys.modules.get("pyiceberg.utils.concurrent")
    pool = None if module is None else module.ExecutorFactory._instance
    return pool is not None and thread in pool._threads


def children() -> set[int]:
    """List the child processes, except multiprocessing's helpers, which live as long as this
    process.
    """
    tasks = Path("/proc/self/task")
    if not tasks.exists():  # without Linux, check at least the processes that multiprocessing knows
        return {child.pid for child in multiprocessing.active_children() if child.pid}
    found = set()
    for task in tasks.iterdir():
        try:
            found |= {int(pid) for pid in (task / "children").read_text().split()}
        except OSError:
            continue  # the thread ended meanwhile, or this kernel does not report it
    return {pid for pid in found if not is_helper(pid)}


def is_helper(pid: int) -> bool:
    """Return whether *pid* is a process that multiprocessing keeps for later."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True  # the process has ended
    return (
        b"multiprocessing.resource_tracker" in command or b"multiprocessing.forkserver" in command
    )
