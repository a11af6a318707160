"""A plugin for pytest's ``-p`` that runs some tests with a planted bug (``--plant NAME``).

Run as a program, it tests many bugs in a row.

``python -m tests.testing.planted.plugin NAME...`` runs the ordinary test that must find each bug.
All tests run in one process, because a new process takes longer than most of the tests. The program
prints a line of JSON for each bug: its name, pytest's exit status and pytest's output.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout

import pytest

from tests.testing.planted import BUGS, planted

PLUGINS = ("pymq.testing.pytest_plugin", "pytest_timeout")  # those that the tests need


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the bug."""
    parser.addoption("--plant", help="the name of a bug that the tests are to find")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> object:
    """Plant the bug while a test runs."""
    with planted(item.config.getoption("--plant")):
        return (yield)


def main(names: list[str]) -> None:
    """Run the test of each bug."""
    # To look for all installed plugins takes longer than most tests.
    quiet = ["-q", "--exitfirst", "-p", "no:cacheprovider", "--disable-plugin-autoload"]
    quiet += [part for plugin in PLUGINS for part in ("-p", plugin)]
    # pymq is a plugin of pytest and already loaded, so pytest cannot rewrite its assertions and
    # would warn.
    quiet += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    for name in names:
        said = io.StringIO()
        with redirect_stdout(said):
            plugin = sys.modules[__name__]
            status = pytest.main([*quiet, "--plant", name, BUGS[name].test], [plugin])
        print(json.dumps([name, int(status), said.getvalue()]))  # noqa: T201 # it is a program


if __name__ == "__main__":
    main(sys.argv[1:])
